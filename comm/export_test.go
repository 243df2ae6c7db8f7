package comm

// OpenWindow does the first step of NewWin, and then nothing more.
func OpenWindow[T any](c *Comm, n int) error {
	l, err := c.begin("NewWin")
	if err != nil {
		return err
	}
	_, err = l.openWindow(typeHash[T](), n, sizeOf[T]())
	return err
}

// ReadBallot parses a ballot and writes it anew.
func ReadBallot(b []byte) ([]byte, bool) {
	var x ballot
	if x.parse(b) != nil {
		return nil, false
	}
	return x.append(nil), true
}
