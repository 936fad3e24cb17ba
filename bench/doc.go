// Package bench measures Escapement side by side with others, in one run, so
// that ratios count and not the machine. `make bench` runs it and prints
// medians; docs/PERFORMANCE.md has the table.
package bench
