// Command broken does not compile, so that a test can check what gorun prints then.
package main

func main() { undefined() }
