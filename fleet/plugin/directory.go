package plugin

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"fleetd/fleet"
)

// maxPlugins is the maximum number of plug-ins of the directory and of the database, each.
const maxPlugins = 500

// settles is how long a file must have been left alone before a change of it is read, so that a
// file that is being written is not read halfway.
const settles = 100 * time.Millisecond

// A directory reads the manifests of a directory again when they change.
type directory struct {
	path    string
	read    map[string]manifestFile // by path; nil before the first scan
	list    []Plugin                // of the latest scan
	err     error                   // of the latest scan
	dropped int                     // files beyond the maximum
}

// A manifestFile is a file as last read.
type manifestFile struct {
	stamp  stamp
	plugin Plugin
}

// A stamp distinguishes versions of a file.
type stamp struct {
	size, time int64
	inode      uint64
	mode       fs.FileMode
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), time: info.ModTime().UnixNano(), mode: info.Mode()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = stat.Ino
	}
	return s
}

// scan returns the plug-ins in order of their names, and whether any changed.
func (d *directory) scan() (list []Plugin, changed bool) {
	entries, err := os.ReadDir(d.path)
	if err != nil { // the plug-ins go on
		changed = d.err == nil || d.err.Error() != err.Error()
		d.err = err
		return d.list, changed
	}
	changed, d.err = d.err != nil, nil
	now := make(map[string]manifestFile, len(entries))
	first := map[string]string{} // file by name
	d.dropped = 0
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if ext != ".yaml" && ext != ".yml" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(d.path, e.Name())
		info, err := os.Stat(path) // follows links: Kubernetes mounts files as links
		if err == nil && info.IsDir() {
			continue
		}
		if len(now) == maxPlugins {
			d.dropped++
			continue
		}
		before, known := d.read[path]
		f, wait := manifestFile{}, false
		if err == nil {
			f.stamp = stampOf(info)
			age := time.Since(info.ModTime())
			wait = d.read != nil && age >= 0 && age < settles
		}
		name := strings.TrimSuffix(e.Name(), ext)
		switch {
		case known && err == nil && (wait || before.stamp == f.stamp):
			f = before
		case wait:
			continue
		default:
			f.plugin = readManifest(path, name, info, err, before.plugin)
			changed = changed || !known || !reflect.DeepEqual(before.plugin, f.plugin)
		}
		now[path] = f
		p := f.plugin
		if other, taken := first[name]; taken {
			p.Name, p.Problem = e.Name(), fleet.Because("plugin_duplicate", "file", other)
		} else {
			first[name] = e.Name()
		}
		list = append(list, p)
	}
	for path := range d.read {
		if _, still := now[path]; !still {
			changed = true
		}
	}
	d.read, d.list = now, sorted(list)
	return d.list, changed
}

func sorted(list []Plugin) []Plugin {
	slices.SortFunc(list, func(a, b Plugin) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// readManifest reads one file, which os.Stat described. If it is wrong, the manifest is the one
// before.
func readManifest(path, name string, info fs.FileInfo, err error, before Plugin) Plugin {
	p := Plugin{Name: name, File: path, Directory: filepath.Dir(path), Manifest: before.Manifest}
	if !namePattern.MatchString(name) {
		p.Name, p.Problem = filepath.Base(path), fleet.Because("plugin_name", "value", name)
		return p
	}
	if err == nil && !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		err = errNotRegular
	}
	var data []byte
	if err == nil {
		data, err = readBounded(path, maxManifestBytes)
	}
	if err != nil {
		p.Problem = fleet.Because("plugin_unreadable", "detail", systemText(err))
		return p
	}
	m, err := Parse(data)
	if err != nil {
		p.Problem = problemOf(err)
		return p
	}
	p.Manifest = m
	return p
}

var errNotRegular = errors.New("not a regular file")

// problemOf returns the reason of an error of [Parse].
func problemOf(err error) fleet.Reason {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return e.Reason()
	}
	return fleet.Because("plugin_unreadable", "detail", err.Error())
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// systemText returns the reason of an error without the path.
func systemText(err error) string {
	if text := fleet.SystemCause(err); text != "" {
		return text
	}
	return err.Error()
}
