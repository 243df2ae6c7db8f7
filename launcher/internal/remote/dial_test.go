//go:build linux

package remote

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// listen returns a listener, which the clean-up closes, and a function that returns what it has
// logged.
func listen(t *testing.T, secret Secret) (l *Listener, logged func() string) {
	t.Helper()
	l, err := Listen("127.0.0.1:0", secret)
	require.NoError(t, err)
	var mu sync.Mutex
	var log strings.Builder
	l.Log = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(line + "\n")
	}
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

// accepting makes a listener accept agents until the test ends. The channel gets their connections.
func accepting(t *testing.T, l *Listener) <-chan *Conn {
	t.Helper()
	conns := make(chan *Conn, 100)
	done := make(chan struct{})
	go func() { // ends when the listener is closed; the clean-up waits for it
		defer close(done)
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			conns <- conn
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-done
		for len(conns) > 0 {
			_ = (<-conns).Close()
		}
	})
	return conns
}

func TestDial(t *testing.T) {
	secret := NewSecret()
	l, _ := listen(t, secret)
	conns := accepting(t, l)
	agent, err := Dial(t.Context(), l.Addr().String(), secret, "node7")
	require.NoError(t, err)
	gorun := <-conns
	require.Equal(t, "node7", gorun.Host())
	require.Equal(t, os.Getpid(), gorun.Peer().PID)

	_, err = io.WriteString(gorun, "down\n")
	require.NoError(t, err)
	require.Equal(t, "down", readLine(t, agent))
	_, err = io.WriteString(agent, "up\n")
	require.NoError(t, err)
	require.Equal(t, "up", readLine(t, gorun))

	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, gorun) })
	wg.Go(func() {
		for {
			if _, err := gorun.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	require.NoError(t, gorun.Close())
	wg.Wait()
	require.NoError(t, gorun.Cause())
	_, err = io.Copy(io.Discard, agent)
	if err != nil {
		require.Error(t, agent.Cause())
	}
	require.NoError(t, agent.Close())
	require.NoError(t, agent.Close())
	_, err = agent.Read(make([]byte, 1))
	require.Error(t, err)
}

func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// TestDialFirst checks that an agent may dial before gorun listens.
func TestDialFirst(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := tcp.Addr().String()
	require.NoError(t, tcp.Close())

	secret := NewSecret()
	dialled := make(chan error, 1)
	go func() { // ends when gorun listens
		conn, err := Dial(context.Background(), addr, secret, "")
		if err == nil {
			err = conn.Close()
		}
		dialled <- err
	}()
	// Before gorun listens here, the kernel may already have refused the agent's first attempts.
	l, err := Listen(addr, secret)
	require.NoError(t, err)
	accepting(t, l)
	require.NoError(t, <-dialled)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.NoError(t, l.Close())
	_, err = Dial(ctx, addr, secret, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	_, err = Dial(ctx, "no-such-host.invalid:1", secret, "")
	require.ErrorContains(t, err, "gorun at no-such-host.invalid:1: ")
	_, err = Dial(t.Context(), "host:port:1", secret, "")
	require.ErrorContains(t, err, "expected HOST:PORT")
	_, err = Dial(t.Context(), "host:no-such-port", secret, "")
	require.ErrorContains(t, err, "expected HOST:PORT")
}

func TestWrongSecret(t *testing.T) {
	l, logged := listen(t, NewSecret())
	accepting(t, l)
	_, err := Dial(t.Context(), l.Addr().String(), NewSecret(), "")
	require.ErrorIs(t, err, errRefused)
	require.Eventually(t, func() bool { return strings.Contains(logged(), "it does not know the secret") }, 10*time.Second, time.Millisecond)
	_, err = Dial(t.Context(), l.Addr().String(), Secret{}, "")
	require.ErrorContains(t, err, "no secret")
}

// tlsServer starts a TLS server for one connection.
func tlsServer(t *testing.T, serve func(conn *tls.Conn) error) (addr string) {
	t.Helper()
	cert, err := newCertificate()
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { // ends after one connection; the clean-up waits for it
		conn, err := l.Accept()
		if err == nil {
			err = serve(conn.(*tls.Conn))
			_ = conn.Close()
		}
		done <- err
	}()
	t.Cleanup(func() {
		_ = l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			require.NoError(t, err)
		}
	})
	return l.Addr().String()
}

// TestManInTheMiddle checks that Dial refuses a server that does not know the secret, also if the
// server sends the agent's proof back or passes it on to gorun.
func TestManInTheMiddle(t *testing.T) {
	secret := NewSecret()
	l, _ := listen(t, secret)
	conns := accepting(t, l)
	for name, serve := range map[string]func(agent *tls.Conn) error{
		"guesses": func(agent *tls.Conn) error {
			if _, err := io.ReadFull(agent, make([]byte, macBytes)); err != nil {
				return err
			}
			_, err := agent.Write(append([]byte{answerAccepted}, make([]byte, macBytes)...))
			return err
		},
		"sends back": func(agent *tls.Conn) error {
			proof := make([]byte, 1+macBytes)
			proof[0] = answerAccepted
			if _, err := io.ReadFull(agent, proof[1:]); err != nil {
				return err
			}
			_, err := agent.Write(proof)
			return err
		},
		"passes on": func(agent *tls.Conn) error {
			gorun, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return err
			}
			defer gorun.Close()
			if _, err := io.CopyN(gorun, agent, macBytes); err != nil {
				return err
			}
			answer := make([]byte, 1)
			if _, err := io.ReadFull(gorun, answer); err != nil {
				return err
			}
			if answer[0] != answerRefused {
				return errors.New("gorun took the proof of another connection")
			}
			_, err = agent.Write(append([]byte{answerAccepted}, make([]byte, macBytes)...))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(t.Context(), tlsServer(t, serve), secret, "")
			require.ErrorIs(t, err, errRefused)
		})
	}
	require.Empty(t, conns)
}

// TestNotGorun checks the error of Dial to a server of another protocol, such as SSH.
func TestNotGorun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() { // ends when Dial closes the connection
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2p1\r\n")
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}()
	_, err = Dial(t.Context(), l.Addr().String(), NewSecret(), "")
	require.ErrorContains(t, err, "does not look like a TLS handshake")
}

// prover returns a connection of a client that has proved that it knows the secret, and has sent no
// greeting yet.
func prover(t *testing.T, l *Listener, secret Secret) *tls.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	proof, err := secret.proof(conn, agentLabel)
	require.NoError(t, err)
	_, err = conn.Write(proof)
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1+macBytes))
	require.NoError(t, err)
	return conn
}

// TestUnprovenPeers checks that the listener refuses programs that are not agents, and still
// accepts an agent.
func TestUnprovenPeers(t *testing.T) {
	secret := NewSecret()
	l, logged := listen(t, secret)
	conns := accepting(t, l)
	addr := l.Addr().String()

	raw, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(raw, "GET / HTTP/1.1\r\n\r\n"+strings.Repeat("x", 1<<16))
	if err == nil {
		_, _ = io.Copy(io.Discard, raw)
	}
	_ = raw.Close()
	require.Eventually(t, func() bool { return strings.Contains(logged(), "does not look like a TLS handshake") }, 10*time.Second, time.Millisecond)

	replayed, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	first := prover(t, l, secret)
	old, err := secret.proof(first, agentLabel)
	require.NoError(t, err)
	_, err = replayed.Write(old)
	require.NoError(t, err)
	answer, err := io.ReadAll(replayed)
	require.NoError(t, err)
	require.Equal(t, []byte{answerRefused}, answer)
	_ = replayed.Close()

	for _, text := range []string{
		strings.Repeat("noise\n", 20000),
		"weft-agent 3 up {}\n",
		"weft-agent 3 send x y\n",
		"weft-agent 3 up {\"hash\":\"" + strings.Repeat("0", 64) + "\",\"host\":\"a\\u001b\",\"pid\":1}\n",
		"weft-agent 3 up " + strings.Repeat("[", 1<<15) + "\n",
	} {
		_, _ = io.WriteString(first, text)
		_, _ = io.Copy(io.Discard, first) // until the listener closes the connection
		_ = first.Close()
		first = prover(t, l, secret)
	}
	_ = first.Close()

	conn, err := Dial(t.Context(), addr, secret, "")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, (<-conns).Close())
	require.Empty(t, conns)
}

// TestManySilentPeers makes more silent connections than gorun keeps. It checks that agents can
// still dial in, and that the silent connections are closed.
func TestManySilentPeers(t *testing.T) {
	secret := NewSecret()
	l, _ := listen(t, secret)
	conns := accepting(t, l)
	var silent []net.Conn
	defer func() {
		for _, conn := range silent {
			_ = conn.Close()
		}
	}()
	for range 4 * maxUnproven {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		silent = append(silent, conn)
	}
	for range 3 {
		conn, err := Dial(t.Context(), l.Addr().String(), secret, "")
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.NoError(t, (<-conns).Close())
	}
	for _, conn := range silent {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err := io.ReadAll(conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded) // gorun has closed the connection
	}
}

// TestListenerClose checks that Close closes the connections of agents and other programs that Accept
// has not returned, and that it works if Accept was not called.
func TestListenerClose(t *testing.T) {
	secret := NewSecret()
	l, _ := listen(t, secret)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Accept(ctx) // starts the listener's goroutine
	require.ErrorIs(t, err, context.Canceled)
	conn, err := Dial(t.Context(), l.Addr().String(), secret, "") // no Accept returns this agent
	require.NoError(t, err)
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = l.Accept(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
	// Copy returns because the connections end: by an end of file, or by a reset if the listener
	// had not read all.
	_, _ = io.Copy(io.Discard, conn)
	_, _ = io.Copy(io.Discard, raw)
	require.NoError(t, conn.Close())
	require.NoError(t, raw.Close())

	l, _ = listen(t, secret)
	require.NoError(t, l.Close())
	_, err = l.Accept(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestSecretFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	secret := NewSecret()
	require.NoError(t, os.WriteFile(file, []byte(secret.Text()+"\n"), 0o600))
	read, err := ReadSecret(file)
	require.NoError(t, err)
	require.Equal(t, secret, read)
	require.NotContains(t, fmt.Sprintf("%v %+v %s %#v", secret, secret, secret, secret), secret.Text())

	for mode, ok := range map[os.FileMode]bool{0o400: true, 0o440: true, 0o604: false, 0o620: false} {
		require.NoError(t, os.Chmod(file, mode))
		_, err = ReadSecret(file)
		require.Equal(t, ok, err == nil, mode)
	}
	for _, text := range []string{"", "short", strings.Repeat("x", maxSecret+1)} {
		require.NoError(t, os.Chmod(file, 0o600))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err = ReadSecret(file)
		require.ErrorContains(t, err, "expected 16 to 4096 bytes")
	}
	_, err = ReadSecret(t.TempDir())
	require.ErrorContains(t, err, "expected a file")
	_, err = ReadSecret(file + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}
