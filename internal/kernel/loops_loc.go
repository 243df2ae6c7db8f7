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
	canonicalNaNs[T](dst[:min(len(dst), len(left), len(right))])
}

func maxLocFloat[T float](dst, left, right []byte) {
	maxLoc[T](dst, left, right)
	canonicalNaNs[T](dst[:min(len(dst), len(left), len(right))])
}

func canonicalNaNs[T float](dst []byte) {
	d := view[Pair[T]](dst)
	for i := range d {
		d[i].Value = canonical(d[i].Value)
	}
}

// winner returns the one of x and y that MinLoc or MaxLoc yields. If both values are numbers, better
// says whether y has the better value, that is, the lesser one for MinLoc and the greater one for
// MaxLoc. A NaN, the only value that differs from itself, is better than all numbers.
func winner[T ordered](x, y Pair[T], better bool) Pair[T] {
	xNaN, yNaN := x.Value != x.Value, y.Value != y.Value
	earlier := y.Index < x.Index
	switch {
	case xNaN || yNaN:
		better = yNaN && (!xNaN || earlier)
	case x.Value == y.Value && x.Index == y.Index:
		x.Value = min(x.Value, y.Value) // -0 wins over +0
	case x.Value == y.Value:
		better = earlier
	}
	if better {
		return y
	}
	return x
}
