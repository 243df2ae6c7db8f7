package kernel

func minLoc[T ordered](dst, left, right []byte) {
	d, l, r := views[Pair[T]](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		x, y := l[i], r[i]
		d[i] = winner(x, y, y.Value < x.Value)
	}
}

func maxLoc[T ordered](dst, left, right []byte) {
	d, l, r := views[Pair[T]](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		x, y := l[i], r[i]
		d[i] = winner(x, y, y.Value > x.Value)
	}
}

func minLocFloat[T float](dst, left, right []byte) {
	minLoc[T](dst, left, right)
	oneNaN[T](dst[:min(len(dst), len(left), len(right))])
}

func maxLocFloat[T float](dst, left, right []byte) {
	maxLoc[T](dst, left, right)
	oneNaN[T](dst[:min(len(dst), len(left), len(right))])
}

func oneNaN[T float](dst []byte) {
	d := view[Pair[T]](dst)
	for i := range d {
		d[i].Value = one(d[i].Value)
	}
}

// winner is x or y, where better says that y has the better value. NaN, the
// only value that differs from itself, is better than all numbers.
func winner[T ordered](x, y Pair[T], better bool) Pair[T] {
	xNaN, yNaN := x.Value != x.Value, y.Value != y.Value
	earlier := y.Index < x.Index
	switch {
	case xNaN || yNaN:
		better = yNaN && (!xNaN || earlier)
	case x.Value == y.Value && x.Index == y.Index:
		x.Value = min(x.Value, y.Value) // -0 from whichever side
	case x.Value == y.Value:
		better = earlier
	}
	if better {
		return y
	}
	return x
}
