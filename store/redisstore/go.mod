module github.com/escapement-dev/escapement/store/redisstore

go 1.26.0

require (
	github.com/escapement-dev/escapement v0.0.0
	github.com/escapement-dev/escapement/store/guard v0.0.0
	github.com/escapement-dev/escapement/store/storetest v0.0.0
	github.com/redis/rueidis v1.0.79
	go.uber.org/goleak v1.3.0
)

require github.com/sony/gobreaker/v2 v2.4.0 // indirect

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
