module github.com/escapement-dev/escapement/cmd/escapement

go 1.26

require (
	github.com/alecthomas/kong v1.17.0
	github.com/goccy/go-yaml v1.19.2
	github.com/rogpeppe/go-internal v1.16.0
	go.uber.org/goleak v1.3.0
)
