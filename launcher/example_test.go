package launcher_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/weft-hpc/weft/launcher"
	"github.com/weft-hpc/weft/launcher/job"
)

// This program runs two shells as ranks of a job on this host. Rank 1 fails.
func Example() {
	args := []string{"-n", "2", "sh", "-c", `[ $WEFT_RANK = 0 ] || { echo rank $WEFT_RANK of $WEFT_SIZE; exit 3; }`}
	j, _, err := job.Parse(args, nil) // args are arguments of gorun; nil: no settings from the environment
	if err != nil {
		fmt.Println(err)
		return
	}
	var stdout, stderr bytes.Buffer
	result := launcher.Run(context.Background(), j, launcher.Stdio{Out: &stdout, Err: &stderr})
	fmt.Print(stdout.String())
	fmt.Println("exit code:", result.ExitCode)
	if f := result.Failure; f != nil {
		fmt.Println("first failure: rank", f.Rank, "with exit code", f.ExitCode)
	}
	// Output:
	// rank 1 of 2
	// exit code: 3
	// first failure: rank 1 with exit code 3
}
