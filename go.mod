module github.com/escapement-dev/escapement

go 1.26

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/klauspost/compress v1.20.4
)
