// Command prog prints its rank, its arguments, and the error of a stat(2) of its own executable, which
// must exist while the rank runs. With the argument wait it first prints "waiting" and sleeps.
package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "wait" {
		fmt.Println("waiting")
		time.Sleep(time.Hour)
	}
	exe, _ := os.Executable()
	_, err := os.Stat(exe)
	fmt.Println("prog", os.Getenv("PMI_RANK"), os.Args[1:], err)
}
