package layout

// Form says which bytes of a buffer are the data of a message, and copies them. A Form is a *Layout, or
// stands for the memory of a device (elem.Device), which only the Form's functions can access.
type Form interface {
	// DataSize returns the number of bytes of data in buf.
	DataSize(buf []byte) int
	// Gather fills dst with data of buf, from the position from on. buf has all this data.
	Gather(dst, buf []byte, from int) error
	// Scatter is the reverse of Gather: it copies src to the data of buf.
	Scatter(buf, src []byte, from int) error
}

var _ Form = (*Layout)(nil)

// DataSize implements [Form].
func (l Layout) DataSize([]byte) int { return l.Size() }

// Gather implements [Form].
//
// Hot path: no allocation.
func (l Layout) Gather(dst, buf []byte, from int) error {
	l.Pack(dst, buf, 0, from)
	return nil
}

// Scatter implements [Form].
//
// Hot path: no allocation.
func (l Layout) Scatter(buf, src []byte, from int) error {
	l.Unpack(buf, src, 0, from)
	return nil
}
