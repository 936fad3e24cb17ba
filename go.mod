module github.com/escapement-dev/escapement

go 1.26
