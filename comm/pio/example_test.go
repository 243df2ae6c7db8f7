package pio_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// inTest stands for the test in which an example runs.
type inTest struct{ testing.TB }

func (inTest) Helper() {}

// In this program each of two ranks writes every second element of a file.
func Example() {
	dir, err := os.MkdirTemp("", "pio")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // an error leaves only a temporary directory
	name := filepath.Join(dir, "file")
	commtest.Run(inTest{}, 2, func(c *comm.Comm) error {
		f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		v, err := pio.NewView[byte](f, int64(c.Rank()), comm.Contiguous(1).Resized(0, 2))
		if err != nil {
			return err
		}
		part := [][]byte{[]byte("hlofl"), []byte("el ie")}[c.Rank()]
		if _, err := pio.WriteAll(v, part); err != nil {
			return err
		}
		return f.Close()
	})
	text, err := os.ReadFile(name)
	fmt.Println(string(text), err)
	// Output: hello file <nil>
}
