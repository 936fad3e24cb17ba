package sqlitestore

import (
	"errors"
	"os"
)

// identity is which files the store has open: the database and its WAL. Their
// names may come to mean other files, or none, while SQLite goes on with the
// ones that it opened: what it then commits is lost with the last process that
// has them open, and another process, on the new file, runs the same keys.
type identity struct {
	names []string
	files []os.FileInfo
}

// identify notes which files there are now. A database without files has none.
func identify(file string) identity {
	var i identity
	for _, name := range []string{file, file + "-wal"} {
		if info, err := os.Stat(name); err == nil {
			i.names, i.files = append(i.names, name), append(i.files, info)
		}
	}
	return i
}

// check returns an *Error if a name stands for another file than it did. It
// opens nothing: closing a second descriptor would drop SQLite's locks.
func (i identity) check() error {
	for n, name := range i.names {
		info, err := os.Stat(name)
		switch {
		case err == nil && os.SameFile(info, i.files[n]):
			continue
		case err == nil:
			err = errors.New("another file has its name")
		}
		return &Error{
			File: name, What: "the file was moved, removed or replaced while it was in use, and nothing is written to it any more",
			Next: "put it back, or restart every process that uses it", Err: err,
		}
	}
	return nil
}
