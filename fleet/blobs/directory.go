package blobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fleetd/fleet"
)

// A directory is a bucket of files. It opens files by path each time, because an open
// directory would still be the old one after another was mounted in its place.
type directory struct {
	path string
	mark string // content of its marker when it was opened
}

// attributes is the suffix of the files that older versions wrote next to blobs.
const attributes = ".attrs"

func openDirectory(dir string) (*directory, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("cannot create the blob directory: %w; choose another with --blob-url", err)
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return nil, fmt.Errorf("cannot write to the blob directory %s: %w; give fleetd write permission, or choose another with --blob-url", dir, err)
	}
	probe.Close()
	os.Remove(probe.Name())
	d := &directory{path: dir}
	if d.mark, err = markOf(dir); err != nil {
		return nil, fmt.Errorf("cannot read the marker of the blob directory %s: %w", dir, err)
	}
	if err := d.sweep(context.Background(), time.Now().Add(-incomingTTL)); err != nil {
		return nil, fmt.Errorf("the blob directory %s: %w", dir, err)
	}
	return d, nil
}

func (d *directory) file(name string) string { return filepath.Join(d.path, filepath.FromSlash(name)) }

func (d *directory) put(ctx context.Context, name string, data []byte) error {
	return d.receive(ctx, bytes.NewReader(data), int64(len(data)), func() (string, error) { return name, nil })
}

// receive writes to a file in incoming, and renames it to the object's name once its bytes
// are on the disk.
func (d *directory) receive(ctx context.Context, r io.Reader, _ int64, name func() (string, error)) error {
	if err := d.there(ctx); err != nil {
		return err
	}
	draft := d.file(incoming + rand.Text())
	if err := d.makeDir(filepath.Dir(draft)); err != nil {
		return err
	}
	f, err := os.OpenFile(draft, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) // minus the umask
	if err != nil {
		return err
	}
	defer os.Remove(draft) // fails if it was renamed
	_, err = io.Copy(f, cancelable{ctx, r})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), ctx.Err()); err != nil {
		return err
	}
	to, err := name()
	if err != nil {
		return err
	}
	to = d.file(to)
	if err := d.makeDir(filepath.Dir(to)); err != nil {
		return err
	}
	if err := d.there(ctx); err != nil { // do not store in another directory, which a mount may hide
		return err
	}
	if err := os.Rename(draft, to); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(to)); err != nil {
		return err
	}
	return d.there(ctx)
}

// makeDir creates a directory below that of the bucket, which must exist.
func (d *directory) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o777) // minus the umask
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(d.path)
}

// syncDir makes the names in a directory durable. Some file systems cannot do that and return
// EINVAL, which it ignores.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

func (d *directory) open(_ context.Context, name string, offset, length int64) (io.ReadCloser, stamp, error) {
	f, err := os.Open(d.file(name))
	if err != nil {
		return nil, stamp{}, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err == nil && offset > 0 {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, stamp{}, err
	}
	now := stamp{modified: info.ModTime().UnixNano(), size: info.Size()}
	now.inode, now.changed = inodeOf(info)
	if length < 0 {
		return f, now, nil
	}
	return limited{io.LimitReader(f, length), f}, now, nil
}

type limited struct {
	io.Reader
	io.Closer
}

func (d *directory) remove(_ context.Context, name string) error {
	file := d.file(name)
	if err := os.Remove(file); err != nil {
		return err
	}
	if err := os.Remove(file + attributes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *directory) list(ctx context.Context, dir, after string, yield func(object) error) error {
	all, err := os.ReadDir(d.file(dir))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, entry := range all { // sorted
		o := object{name: dir + entry.Name()}
		if o.name <= after || !entry.Type().IsRegular() {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		o.size, o.modified = info.Size(), info.ModTime()
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := yield(o); err != nil {
			return err
		}
	}
	return nil
}

// removeOld first gives the file a name that only it uses: another process may have replaced the file
// after its age was read, and the new one must stay.
func (d *directory) removeOld(ctx context.Context, name string, before time.Time) (bool, error) {
	file, away := d.file(name), d.file(incoming+rand.Text())
	isOld := func(file string) (bool, error) {
		info, err := os.Lstat(file)
		return err == nil && info.Mode().IsRegular() && info.ModTime().Before(before), err
	}
	old, err := isOld(file)
	if err == nil && old {
		err = d.makeDir(filepath.Dir(away))
	}
	if err == nil && old {
		err = os.Rename(file, away)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, d.there(ctx)
	}
	if err != nil || !old {
		return false, err
	}
	if old, err = isOld(away); err != nil || !old {
		if back := os.Link(away, file); back != nil && !errors.Is(back, fs.ErrExist) { // it was stored once more
			return false, errors.Join(err, back)
		}
		return false, errors.Join(err, os.Remove(away))
	}
	if err := os.Remove(away); err != nil {
		return false, err
	}
	if err := os.Remove(file + attributes); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return true, err
	}
	return true, nil
}

func (d *directory) sweep(_ context.Context, before time.Time) error {
	all, err := os.ReadDir(d.file(incoming))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing unfinished uploads: %w", err)
	}
	for _, entry := range all {
		info, err := entry.Info()
		if err == nil && !info.IsDir() && info.ModTime().Before(before) {
			err = os.Remove(d.file(incoming + entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another process may have deleted it
			return fmt.Errorf("deleting an unfinished upload: %w", err)
		}
	}
	return nil
}

// markOf returns the content of the directory's marker. It writes one if it is missing.
func markOf(dir string) (string, error) {
	at := filepath.Join(dir, marker)
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err == nil {
		_, err = f.WriteString(rand.Text())
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	mark, err := os.ReadFile(at)
	return string(mark), err
}

func (d *directory) there(context.Context) error {
	mark, err := os.ReadFile(filepath.Join(d.path, marker))
	switch {
	case err == nil && string(mark) == d.mark:
		return nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return fleet.Refuse(fleet.ErrUnavailable, "blob_store.elsewhere")
	}
	return err
}

func (d *directory) close() error { return nil }
