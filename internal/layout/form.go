package layout

// Form says which bytes of a buffer are the data of a message, and copies them. A Form is a *Layout, or
// stands for the memory of a device (elem.Device), which only the Form's functions can access.
type Form interface {
	// DataSize returns the number of bytes of data in buf.
	DataSize(buf []byte) int
	// Gather copies len(dst) bytes of the data of buf to dst, starting at byte from of the data. The data must
	// have that many bytes.
	Gather(dst, buf []byte, from int) error
	// Scatter copies src to the data of buf, starting at byte from of the data. It drops bytes that do not fit.
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
