module github.com/escapement-dev/escapement/cmd/escapement

go 1.26

