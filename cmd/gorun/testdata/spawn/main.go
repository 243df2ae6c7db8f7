// Spawn starts copies of itself by comm.Spawn. Its argument says what happens then.
package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	comm.Main(func(c *comm.Comm) error {
		if c.Parent() != nil {
			return child(c, os.Args[1], os.Args[2:])
		}
		return parent(c, os.Args[1])
	})
}

func parent(c *comm.Comm, mode string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	spawn := func(procs ...comm.Proc) (*comm.Comm, error) { return c.Spawn(c.Size()-1, procs...) }
	switch mode {
	case "groups": // several programs, with arguments, a directory and a variable
		kids, err := spawn(
			comm.Proc{Path: self, Args: []string{mode, "a b", ""}, N: 2, Env: []string{"KIND=first kind"}},
			comm.Proc{Path: self, Args: []string{mode, "second"}, N: 1, Dir: "/"})
		if err != nil {
			return err
		}
		texts := make([]string, 3)
		if c.Rank() == 0 {
			for i := range texts {
				if texts[i], _, err = comm.RecvValue[string](kids, i, 0); err != nil {
					return err
				}
			}
			fmt.Printf("%q\n", texts)
		}
		m, err := kids.Merge(false)
		if err != nil {
			return err
		}
		sum := make([]int, 1)
		if err := comm.Allreduce(m, []int{m.Rank()}, sum, comm.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("sum", sum[0], "of", m.Size())
		}
		return errors.Join(m.Free(), kids.Free())
	case "missing":
		_, err := spawn(comm.Proc{Path: "/no/such/program", N: 2})
		if !errors.Is(err, comm.ErrSpawn) {
			return fmt.Errorf("%w instead of ErrSpawn", err)
		}
		if err := c.Barrier(); err != nil { // c is still usable
			return err
		}
		if c.Rank() == c.Size()-1 {
			fmt.Println(err)
		}
		return nil
	case "many": // one wave after the other
		for range 20 {
			kids, err := spawn(comm.Proc{Path: self, Args: []string{"free"}, N: 2})
			if err != nil {
				return err
			}
			if err := kids.Free(); err != nil {
				return err
			}
		}
		return nil
	case "nested":
		kids, err := spawn(comm.Proc{Path: self, Args: []string{mode, "2"}, N: 1})
		if err != nil {
			return err
		}
		depth := make([]int, 1)
		if err := comm.Bcast(kids, depth, 0); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("depth", depth[0])
		}
		return kids.Free()
	default:
		kids, err := spawn(comm.Proc{Path: self, Args: []string{mode}, N: 2})
		if err != nil {
			return err
		}
		if mode == "parent dies" && c.Rank() == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		_, err = comm.Recv(kids, []int{0}, 1, 0) // no child sends anything
		return fmt.Errorf("rank %d of the parent: %w", c.Rank(), err)
	}
}

func child(c *comm.Comm, mode string, args []string) error {
	p := c.Parent()
	switch mode {
	case "groups":
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		text := fmt.Sprint(c.Job().App, args, os.Getenv("KIND"), dir == "/")
		if err := comm.SendValue(p, text, 0, 0); err != nil {
			return err
		}
		m, err := p.Merge(true)
		if err != nil {
			return err
		}
		sum := make([]int, 1)
		if err := comm.Allreduce(m, []int{m.Rank()}, sum, comm.Sum); err != nil {
			return err
		}
		return errors.Join(m.Free(), p.Free())
	case "nested":
		depth := []int{1}
		if args[0] != "0" {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			next := fmt.Sprint(int(args[0][0]-'0') - 1)
			kids, err := c.Spawn(0, comm.Proc{Path: self, Args: []string{mode, next}, N: 1})
			if err != nil {
				return err
			}
			if err := comm.Bcast(kids, depth, 0); err != nil {
				return err
			}
			depth[0]++
			if err := kids.Free(); err != nil {
				return err
			}
		}
		return errors.Join(comm.Bcast(p, depth, comm.Root), p.Free())
	case "free":
		return p.Free()
	case "child fails":
		if c.Rank() == 1 {
			return errors.New("no such mesh")
		}
	case "child dies":
		if c.Rank() == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	case "child aborts":
		if c.Rank() == 1 {
			p.Abort(9)
		}
	case "early":
		os.Exit(3)
	}
	time.Sleep(time.Hour) // the failure of the other processes ends this one
	return nil
}
