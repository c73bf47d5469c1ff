package server

import (
	"cmp"
	"context"
	_ "embed"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/broker/edge"
	"fleetd/fleet/system"
)

// licences is the output of scripts/licences: name, kind, licence and version.
//
//go:embed licences.tsv
var licences string

// Limits of a report: how long the database may take, and how long a report is
// cached, so frequent reloads of a page cost nothing.
const (
	reportTimeout = 5 * time.Second
	reportFresh   = 5 * time.Second
)

// A systemReporter reports the state of this server.
type systemReporter struct {
	server  *Server
	cert    *certificate // nil without TLS
	started time.Time

	mu   sync.Mutex
	at   time.Time
	last system.Report
}

func (r *systemReporter) report(ctx context.Context) (system.Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.at) > reportFresh {
		made, err := r.read(ctx)
		if err != nil {
			return system.Report{}, err
		}
		r.at, r.last = now, made
	}
	return r.last, nil
}

func (r *systemReporter) read(ctx context.Context) (v system.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	s := r.server
	if v.Database, err = s.store.DatabaseReport(ctx); err != nil {
		return v, err
	}
	if v.Images, err = s.store.StoredImages(ctx); err != nil {
		return v, err
	}
	v.Database.Embedded = s.cfg.DatabaseURL == ""
	v.Version, v.Node, v.StartedAt = s.cfg.Version, s.cfg.NodeName, r.started
	v.GoVersion, v.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	v.Memory = int64(memory.Sys)
	for _, d := range s.disks() {
		v.Disks = append(v.Disks, system.Disk{Name: d.Name, Free: d.Free, Total: d.Total})
	}
	if r.cert != nil {
		v.Certificates = []system.Certificate{{Name: filepath.Base(r.cert.certFile), Ends: r.cert.expiry().UTC()}}
	}
	b, e := s.broker.Stats(), edge.Stats{} // a core has no sockets
	if s.edge != nil {
		e = s.edge.Stats()
	}
	v.Broker = system.Broker{Connections: b.Connections, Sockets: e.Sockets, Onboarding: b.Onboarding,
		MessagesIn: e.PublishesIn, MessagesOut: e.PublishesOut, Dropped: e.OutboxFull}
	for _, n := range e.Refused {
		v.Broker.Refused += n
	}
	v.Parts = parts(&v)
	return v, nil
}

// parts lists the linked modules, and the libraries of the console. It also
// sets the commit of the build.
func parts(v *system.Report) (all []system.Part) {
	known := make(map[string]string) // licences of modules
	for line := range strings.Lines(licences) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		p := system.Part{Name: f[0], Kind: system.ComponentKind(f[1]), Licence: f[2], Version: f[3]}
		if p.Kind == system.PartModule {
			known[p.Name] = p.Licence
		} else {
			all = append(all, p)
		}
	}
	all = append(all, system.Part{Name: "std", Kind: system.PartModule, Version: runtime.Version(),
		Licence: known["std"]})
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return all
	}
	for _, m := range info.Deps {
		all = append(all, system.Part{Name: m.Path, Kind: system.PartModule, Licence: known[m.Path],
			Version: cmp.Or(m.Replace, m).Version})
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	slices.SortFunc(all, func(a, b system.Part) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return all
}
