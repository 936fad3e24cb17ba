module github.com/escapement-dev/escapement/bench

go 1.26.0

require (
	github.com/sethvargo/go-limiter v0.7.1 // indirect
	golang.org/x/time v0.16.0 // indirect
)
