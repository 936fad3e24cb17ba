// Package sqlitestore keeps the records of idempotency keys in a SQLite file.
package sqlitestore
