module github.com/escapement-dev/escapement/bench

go 1.26

