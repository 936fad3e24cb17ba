module github.com/escapement-dev/escapement/store/redisstore

go 1.26

require (
	github.com/redis/rueidis v1.0.79
	go.uber.org/goleak v1.3.0
)
