// Command tagged says whether it was built with the libfabric tag.
package main

import "fmt"

func main() { fmt.Println(tag, "libfabric") }
