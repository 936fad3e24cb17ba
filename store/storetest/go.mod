module github.com/escapement-dev/escapement/store/storetest

go 1.26

