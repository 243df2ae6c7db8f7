package job

import (
	"flag"
	"io"
)

// parseAgent parses the arguments that follow -agent. gorun starts itself with -agent on other
// hosts. With -launcher dial, the user or another system, such as a container platform, starts
// gorun -agent there.
func parseAgent(args []string) (Options, error) {
	opts := Options{Action: Agent}
	fs := flag.NewFlagSet("gorun -agent", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.BoolVar(&opts.Hash, "hash", false, "")
	fs.StringVar(&opts.Connect, "connect", "", "")
	fs.StringVar(&opts.SecretFile, "secret-file", "", "")
	if err := fs.Parse(args); err != nil {
		return Options{}, usage("-agent", "expected nothing, or -connect HOST:PORT -secret-file FILE, after it: %s", err)
	}
	switch {
	case fs.NArg() > 0:
		return Options{}, usage("-agent", "expected nothing, or -connect HOST:PORT -secret-file FILE, after it, found %s", quote(fs.Arg(0)))
	case opts.Hash && (opts.Connect != "" || opts.SecretFile != ""):
		return Options{}, usage("-hash", "expected no other flag than -agent with it")
	case opts.Connect == "" && opts.SecretFile != "":
		return Options{}, usage("-secret-file", "expected -connect with it, found none")
	case opts.Connect == "":
		return opts, nil
	case !isHostPort(opts.Connect, false):
		return Options{}, usage("-connect", "expected HOST:PORT with a port from 1 to 65535, found %s", quote(opts.Connect))
	case opts.SecretFile == "":
		return Options{}, usage("-connect", "expected -secret-file with it, found none")
	}
	return opts, nil
}
