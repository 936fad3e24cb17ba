module github.com/escapement-dev/escapement/store/storetest

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/escapement-dev/escapement v0.0.0
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)
