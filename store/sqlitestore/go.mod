module github.com/escapement-dev/escapement/store/sqlitestore

go 1.26

