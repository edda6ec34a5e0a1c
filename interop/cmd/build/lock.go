package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockCache lets one builder work in the folder at a time: two would slow each other down. The kernel drops the
// lock when this process ends.
func lockCache(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return file, nil
	}
	fmt.Println("build: waiting for another build of the same folder")
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
