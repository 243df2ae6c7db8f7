module github.com/weft-hpc/weft/launcher/internal/trace/schema

go 1.26.0

replace github.com/weft-hpc/weft => ../../../..

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/stretchr/testify v1.12.1
	github.com/weft-hpc/weft v0.0.0-00010101000000-000000000000
	google.golang.org/protobuf v1.36.12
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
