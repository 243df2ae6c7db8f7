package tree

import (
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree/treetest"
)

// testLaunch returns a Launch for the agent of the first of count hosts.
func testLaunch(count int) proto.Launch {
	l := proto.Launch{JobID: "job", Radix: 2, AtOnce: 2, Timeout: 10 * time.Second, Heartbeat: testHeartbeat}
	for i := range count {
		l.Hosts = append(l.Hosts, hosts.Host{Name: hostName(i)})
	}
	return l
}

func frames(t testing.TB, messages ...proto.Message) []byte {
	var buf []byte
	var err error
	for _, m := range messages {
		buf, err = proto.Append(buf, m)
		require.NoError(t, err)
	}
	return buf
}

// TestServeNoLaunch checks that an agent ends if its parent sends nothing, or anything else than
// Launch.
func TestServeNoLaunch(t *testing.T) {
	bad := testLaunch(1)
	bad.Index = -1
	for name, c := range map[string]struct {
		say  []byte
		cut  bool
		want string
		is   error
	}{
		"nothing":  {want: "gorun sent no job"},
		"the end":  {cut: true, is: io.EOF},
		"no host":  {say: frames(t, proto.Launch{}), is: proto.ErrFrame},
		"index":    {say: frames(t, bad), is: proto.ErrFrame},
		"another":  {say: frames(t, proto.Start{}), is: proto.ErrFrame},
		"no frame": {say: []byte("SSH-2.0-OpenSSH_9.6\r\n"), is: proto.ErrFrame},
		"a part":   {say: frames(t, testLaunch(1))[:20], cut: true, is: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := treetest.NewPipe(testLatency)
				_, err := p.Parent.Write(c.say)
				require.NoError(t, err)
				if c.cut {
					require.NoError(t, p.Parent.Close())
				}
				err = Serve(t.Context(), p.Child, func(proto.Launch) (Config, error) { return Config{}, errors.New("not reached") })
				require.ErrorContains(t, err, c.want)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				_, err = p.Child.Read(make([]byte, 1))
				require.Error(t, err)
			})
		})
	}
}

// TestServeContext checks that an agent whose context ends also ends its whole subtree, and that
// gorun gets Lost for the subtree.
func TestServeContext(t *testing.T) {
	why := errors.New("the agent got SIGTERM")
	for _, silent := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 7, 2)
			ctx, cancel := context.WithCancelCause(t.Context())
			w.agent = func(index int, s *treetest.Stream) bool {
				if index != 4 {
					return false
				}
				err := Serve(ctx, s, func(proto.Launch) (Config, error) {
					return Config{Procs: w.mkProcs(4), Open: w.connect}, nil
				})
				w.mu.Lock()
				defer w.mu.Unlock()
				w.serves[4] = err
				return true
			}
			w.launch()
			defer w.close()
			w.hostProcs[5].Silent = silent
			begun := time.Now()
			cancel(why)
			lost := one[proto.Lost](w)
			require.Equal(t, proto.Lost{First: 4, Count: 3, Cause: "host4: its agent has ended"}, lost)
			time.Sleep(endLimit + 3*byeLimit)
			w.mu.Lock()
			err := w.serves[4]
			w.mu.Unlock()
			require.ErrorIs(t, err, why)
			for _, i := range []int{4, 5, 6} {
				require.Contains(t, w.hostProcs[i].Got(), proto.Message(proto.End{Except: -1}))
			}
			require.Less(t, time.Since(begun), time.Minute)
			w.root.Do(proto.End{})
			want := 7 * w.ranks
			if silent {
				want = 4 * w.ranks
			}
			require.Len(t, one[proto.Ended](w).Exits, want)
		})
	}
}

// TestServeSignals checks that an agent whose context has ended still passes on gorun's signals to
// its ranks, and the output of the ranks to gorun, during the grace period.
func TestServeSignals(t *testing.T) {
	for _, heeds := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 3, 1)
			ctx, cancel := context.WithCancelCause(t.Context())
			w.agent = func(index int, s *treetest.Stream) bool {
				if index != 1 {
					return false
				}
				_ = Serve(ctx, s, func(proto.Launch) (Config, error) {
					return Config{Procs: w.mkProcs(1), Open: w.connect}, nil
				})
				return true
			}
			w.grace = time.Hour
			w.launch()
			defer w.close()
			for _, i := range []int{1, 2} {
				c, n := w.hostProcs[i], w.nodes[i]
				c.Silent = true
				c.See = func(m proto.Message) {
					switch m := m.(type) {
					case proto.Signal:
						go func() { // ends at once, because the window has room for this output
							_ = n.Output(proto.Output{Index: i, Stream: proto.Merged, Data: []byte("last words\n")})
						}()
					case proto.End:
						if heeds && m.Grace == 0 {
							c.End()
						}
					}
				}
			}
			cancel(errors.New("the agent got SIGTERM"))
			time.Sleep(time.Second)
			for _, i := range []int{1, 2} {
				require.Contains(t, w.hostProcs[i].Got(), proto.Message(proto.End{Grace: time.Hour, Except: -1}))
			}
			w.root.Do(proto.Signal{Signal: 2})
			time.Sleep(time.Second)
			require.Len(t, got[proto.Output](w), 2)
			begun := time.Now()
			w.root.Do(proto.End{Except: -1})
			lost := one[proto.Lost](w)
			require.Equal(t, 1, lost.First)
			want := 1
			if heeds {
				want = 3
				require.Less(t, time.Since(begun), 2*time.Second)
			}
			require.Less(t, time.Since(begun), endLimit+3*byeLimit)
			require.Len(t, one[proto.Ended](w).Exits, want*w.ranks)
		})
	}
}

// TestNoBye checks that Close waits only byeLimit for a child that does not end.
func TestNoBye(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, 2)
		w.launch()
		w.pipes[0].Stall(true)
		begun := time.Now()
		w.root.Close()
		require.Equal(t, byeLimit, time.Since(begun))
		w.pipes[0].Stall(false)
		w.wg.Wait()
		require.Empty(t, got[proto.Lost](w))
	})
}

// TestConfig checks that New refuses a Config with which no node can work.
func TestConfig(t *testing.T) {
	good := Config{Launch: testLaunch(1), Up: func(proto.Message) {}, Procs: func(*Node, func(proto.Message)) Procs { return &treetest.Procs{} }}
	n, err := New(good)
	require.NoError(t, err)
	n.Close()
	n.Close()
	n.Do(proto.End{})
	n.Consumed(proto.Output{})
	require.ErrorIs(t, n.Output(proto.Output{Data: []byte("x")}), errEnded)
	require.NoError(t, n.AwaitRoom(t.Context()))
	n.Flush(time.Hour)
	require.Empty(t, n.inbox, "functions posted after the end are not kept")
	for name, spoil := range map[string]func(*Config){
		"hosts":    func(c *Config) { c.Launch.Hosts = nil },
		"index":    func(c *Config) { c.Launch.Index = -2 },
		"up":       func(c *Config) { c.Up = nil },
		"open":     func(c *Config) { c.Launch.Hosts = append(c.Launch.Hosts, hosts.Host{Name: "b"}) },
		"no procs": func(c *Config) { c.Procs = nil },
		"procs":    func(c *Config) { c.Launch.Index = -1 },
		"many":     func(c *Config) { c.Launch.Index = hosts.Limit },
		"most":     func(c *Config) { c.Launch.Index = math.MaxInt },
	} {
		bad := good
		spoil(&bad)
		_, err := New(bad)
		require.Error(t, err, name)
	}
}

func TestSplit(t *testing.T) {
	require.Empty(t, split(part{1, 0}, 5))
	for count := 1; count < 200; count++ {
		for radix := 1; radix < 70; radix++ {
			parts := split(part{3, count}, radix)
			if len(parts) != min(count, radix) {
				t.Fatalf("%d by %d: %v", count, radix, parts)
			}
			next := 3
			for _, p := range parts {
				if p.first != next || p.count > parts[0].count || p.count < parts[0].count-1 {
					t.Fatalf("%d by %d: %v", count, radix, parts)
				}
				next += p.count
			}
			if next != 3+count {
				t.Fatalf("%d by %d: %v", count, radix, parts)
			}
		}
	}
	require.Equal(t, 0, Depth(0, 64))
	require.Equal(t, 1, Depth(64, 64))
	require.Equal(t, 2, Depth(65, 64))
	require.Equal(t, 2, Depth(64+64*64, 64))
	require.Equal(t, 3, Depth(10000, 64))
	require.Equal(t, 7, Depth(7, 1))
}

func TestCut(t *testing.T) {
	long := make([]byte, maxOutput+10)
	for _, at := range []int{-1, 0, 100, maxOutput - 1, maxOutput} {
		data := append([]byte(nil), long...)
		want := maxOutput
		if at >= 0 {
			data[at] = '\n'
			if at < maxOutput {
				want = at + 1
			}
		}
		piece, rest := cut(data)
		require.Len(t, piece, want)
		require.Len(t, rest, len(data)-want)
	}
}
