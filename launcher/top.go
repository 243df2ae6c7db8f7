package launcher

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// topEvery is the time between two tables of gorun -top.
const topEvery = time.Second

// Top prints what the ranks of a running job do, as gorun -top does, and returns the exit code. On a
// terminal the table is renewed every second, until the job or ctx ends; otherwise Top prints one
// table. opts.Job names the job as in [Stacks].
func Top(ctx context.Context, stdout, stderr io.Writer, opts job.Options) int {
	var before *live.Snapshot
	screen, onScreen := stdout.(*os.File)
	onScreen = onScreen && sys.IsTerminal(int(screen.Fd()))
	for n := 0; ; n++ {
		now, err := askTop(ctx, opts)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil && before != nil: // the job has ended
			fmt.Fprintln(stderr, "gorun: "+jobEnded)
			return 0
		case err != nil:
			fmt.Fprintf(stderr, "gorun: -top: %v\n", err)
			return proto.ExitFailed
		}
		if n > 0 || onScreen {
			var b bytes.Buffer
			lines := 0
			if onScreen {
				b.WriteString("\x1b[H\x1b[2J") // cursor to the top, clear the screen
				lines = 24
				if size, err := unix.IoctlGetWinsize(int(screen.Fd()), unix.TIOCGWINSZ); err == nil && size.Row > 0 {
					lines = int(size.Row) - 1
				}
			}
			_ = live.WriteTop(&b, before, now, lines) // a Buffer returns no error
			if _, err := stdout.Write(b.Bytes()); err != nil {
				fmt.Fprintf(stderr, "gorun: print: %v\n", err)
				return proto.ExitFailed
			}
			if !onScreen {
				return 0
			}
		}
		before = now
		select {
		case <-ctx.Done():
			return 0
		case <-time.After(topEvery):
		}
	}
}

// askTop asks the gorun that runs the job for its state.
func askTop(ctx context.Context, opts job.Options) (*live.Snapshot, error) {
	var found *live.Snapshot
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := askJob(ctx, jobQuestion{Job: opts.Job, About: aboutFigures}, func(_ net.Conn, a jobAnswer) {
		found = a.Snapshot
		cancel()
	})
	if found != nil {
		return found, nil
	}
	return nil, cmp.Or(err, noJob(opts.Job))
}
