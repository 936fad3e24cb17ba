module github.com/escapement-dev/escapement/store/guard

go 1.26.0

require (
	github.com/escapement-dev/escapement v0.0.0
	github.com/sony/gobreaker/v2 v2.4.0
)
