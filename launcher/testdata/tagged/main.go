// Command tagged prints whether it was built with the tag libfabric.
package main

import "fmt"

func main() { fmt.Println(tag, "libfabric") }
