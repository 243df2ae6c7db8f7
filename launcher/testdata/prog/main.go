// Command prog is built and run by the launcher's tests.
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
