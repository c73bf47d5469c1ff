package api

import (
	"context"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/system"
	"fleetd/web/access"
)

func (a *api) registerSystem() {
	register(a, operation{id: "get-system", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/system", role: fleet.RoleAdmin,
		summary: "Show the server's status and components",
		about:   "Figures describe the answering process and are up to five seconds old. Row counts of tables are PostgreSQL's estimates."},
		a.getSystem)
}

type systemView struct {
	Version      string            `json:"version"`
	Commit       string            `json:"commit" doc:"Empty if it is not known"`
	Modified     bool              `json:"modified" doc:"Built from files that differ from the commit"`
	GoVersion    string            `json:"go_version"`
	Platform     string            `json:"platform" example:"linux/amd64"`
	Node         string            `json:"node"`
	StartedAt    time.Time         `json:"started_at"`
	UptimeMS     int64             `json:"uptime_ms"`
	MemoryBytes  int64             `json:"memory_bytes"`
	Database     databaseView      `json:"database"`
	Disks        []diskView        `json:"disks" nullable:"false"`
	Images       storedImagesView  `json:"images"`
	Certificates []certificateView `json:"certificates" nullable:"false"`
	Broker       brokerView        `json:"broker"`
	Parts        []systemPartView  `json:"parts" nullable:"false"`
}

type databaseView struct {
	Server    string          `json:"server" doc:"Version of PostgreSQL"`
	Embedded  bool            `json:"embedded"`
	Bytes     int64           `json:"bytes"`
	Migration int64           `json:"migration"`
	Tables    []tableSizeView `json:"tables" nullable:"false" doc:"The largest tables, with their indexes"`
	Pool      poolView        `json:"pool"`
}

type tableSizeView struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Rows  int64  `json:"rows" doc:"-1 before PostgreSQL has counted"`
}

type poolView struct {
	InUse int32 `json:"in_use"`
	Idle  int32 `json:"idle"`
	Most  int32 `json:"most"`
}

type diskView struct {
	Name       string `json:"name"`
	FreeBytes  int64  `json:"free_bytes"`
	TotalBytes int64  `json:"total_bytes"`
}

type storedImagesView struct {
	Count int   `json:"count"`
	Bytes int64 `json:"bytes"`
}

type certificateView struct {
	Name   string    `json:"name"`
	EndsAt time.Time `json:"ends_at"`
}

type brokerView struct {
	Connections int64 `json:"connections"`
	Sockets     int64 `json:"sockets"`
	Onboarding  int64 `json:"onboarding" doc:"Devices being asked for their tools, or waiting for that"`
	MessagesIn  int64 `json:"messages_in" doc:"Since the start"`
	MessagesOut int64 `json:"messages_out" doc:"Since the start"`
	Dropped     int64 `json:"dropped" doc:"Messages not sent since the start because the device did not read"`
	Refused     int64 `json:"refused" doc:"Connections refused since the start"`
}

type systemPartView struct {
	Name    string               `json:"name"`
	Version string               `json:"version"`
	Kind    system.ComponentKind `json:"kind" enum:"module,font,script"`
	Licence string               `json:"licence" doc:"SPDX identifier; empty if it is not known"`
}

func (a *api) getSystem(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[systemView], error) {
	r, err := a.Report(ctx)
	if err != nil {
		return nil, err
	}
	d := r.Database
	v := systemView{Version: r.Version, Commit: r.Commit, Modified: r.Modified, GoVersion: r.GoVersion,
		Platform: r.Platform, Node: r.Node, StartedAt: utc(r.StartedAt),
		UptimeMS: time.Since(r.StartedAt).Milliseconds(), MemoryBytes: r.Memory,
		Database: databaseView{Server: d.Server, Embedded: d.Embedded, Bytes: d.Bytes, Migration: d.Migration,
			Tables: []tableSizeView{}, Pool: poolView{d.InUse, d.Idle, d.Most}},
		Disks: []diskView{}, Images: storedImagesView(r.Images), Certificates: []certificateView{},
		Broker: brokerView{r.Broker.Connections, r.Broker.Sockets, r.Broker.Onboarding,
			r.Broker.MessagesIn, r.Broker.MessagesOut, r.Broker.Dropped, r.Broker.Refused}, Parts: []systemPartView{}}
	for _, t := range d.Tables {
		v.Database.Tables = append(v.Database.Tables, tableSizeView(t))
	}
	for _, x := range r.Disks {
		v.Disks = append(v.Disks, diskView{x.Name, x.Free, x.Total})
	}
	for _, c := range r.Certificates {
		v.Certificates = append(v.Certificates, certificateView{c.Name, utc(c.Ends)})
	}
	for _, p := range r.Parts {
		v.Parts = append(v.Parts, systemPartView{p.Name, p.Version, p.Kind, p.Licence})
	}
	return answerWith(v), nil
}
