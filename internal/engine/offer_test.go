package engine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// Who asks again and again lets the goroutine run that has the answer, also where
// there is one processor for both.
func TestQuestionsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := world(openJob(t, 2, inproc.NewFabric(), nil))[0]
	const few = 100 // take a fraction of the runtime's time slice
	for name, ask := range map[string]func(task Request) (bool, error){
		"Test": func(task Request) (bool, error) {
			_, done, err := task.Test()
			return done, err
		},
		"Iprobe": func(Request) (bool, error) {
			_, there, err := c.Iprobe(Env{Peer: 0, Tag: 3})
			return there, err
		},
	} {
		task := c.e.Go(func() error { return c.Send(background, nil, Env{Peer: 0, Tag: 3}) })
		done, err := false, error(nil)
		for i := 0; i < few && !done; i++ {
			done, err = ask(task)
			require.NoError(t, err)
		}
		require.True(t, done, name)
		_, err = c.Recv(background, nil, Env{Peer: 0, Tag: 3})
		require.NoError(t, err)
		_, err = task.Wait(background)
		require.NoError(t, err)
	}
}
