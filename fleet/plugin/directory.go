package plugin

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fleetd/fleet"
)

// maxPlugins is the maximum number of plug-ins of the directory and of the database, each.
const maxPlugins = 500

// A directory reads the manifests of a directory again when they change.
type directory struct {
	path string
	read map[string]manifestFile // by path
	err  error                   // of the latest read
}

// A manifestFile is a file as last read.
type manifestFile struct {
	stamp  stamp
	plugin Plugin
}

// A stamp tells versions of a file apart.
type stamp struct {
	size, time int64
	mode       fs.FileMode
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{info.Size(), info.ModTime().UnixNano(), info.Mode()}
}

// scan returns the plug-ins in order of their names, and whether any changed.
func (d *directory) scan() (list []Plugin, changed bool) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		changed = d.err == nil || d.err.Error() != err.Error()
		d.err = err
		for _, f := range d.read { // they go on
			list = append(list, f.plugin)
		}
		return sorted(list), changed
	}
	changed, d.err = d.err != nil, nil
	now := make(map[string]manifestFile, len(entries))
	first := map[string]string{} // file by name
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if ext != ".yaml" && ext != ".yml" || strings.HasPrefix(e.Name(), ".") || len(now) == maxPlugins {
			continue
		}
		path := filepath.Join(d.path, e.Name())
		info, err := os.Stat(path) // follows links: Kubernetes mounts files as links
		if err == nil && info.IsDir() {
			continue
		}
		var f manifestFile
		if err == nil {
			f.stamp = stampOf(info)
		}
		before, known := d.read[path]
		name := strings.TrimSuffix(e.Name(), ext)
		if known && before.stamp == f.stamp && err == nil {
			f.plugin = before.plugin
		} else {
			f.plugin = readManifest(path, name, before.plugin)
			changed = true
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
	changed = changed || len(now) != len(d.read)
	d.read = now
	return sorted(list), changed
}

func sorted(list []Plugin) []Plugin {
	slices.SortFunc(list, func(a, b Plugin) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// readManifest reads one file. If it is wrong, the manifest is the one before.
func readManifest(path, name string, before Plugin) Plugin {
	p := Plugin{Name: name, File: path, Directory: filepath.Dir(path), Manifest: before.Manifest}
	if !namePattern.MatchString(name) {
		p.Name, p.Problem = filepath.Base(path), fleet.Because("plugin_name", "value", name)
		return p
	}
	data, err := readBounded(path, maxManifestBytes)
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
