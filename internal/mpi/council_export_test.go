package mpi

import "context"

// TellVerdict presides for the first vote that comes here: it tells its sender, and
// nobody else, that this process alone has failed.
func TellVerdict(c *Comm) error {
	k := &c.s.job.council
	for {
		m, st, err := k.talk.Attend(c.ctx, c.s.job.eng.ChangeCount(), false)
		if err != nil {
			return err
		}
		if m.IsZero() {
			continue
		}
		buf := make([]byte, st.Bytes)
		if _, err := m.Recv(context.Background(), buf); err != nil {
			return err
		}
		var b ballot
		if err := b.parse(buf); err != nil {
			return err
		}
		b.kind = verdict
		b.failed.set(c.s.rank)
		k.send(&b, st.Source)
		return nil
	}
}

// Leftover is what Finalize and Free ask at the end.
func Leftover(c *Comm) error { return c.s.leftover() }
