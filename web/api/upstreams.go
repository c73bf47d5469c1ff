package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/upstream"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerUpstreams() {
	const path, one = "/upstreams", "/upstreams/{id}"
	register(a, operation{id: "list-upstreams", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: path,
		role: fleet.RoleViewer, summary: "List voice servers, without their secrets",
		about: "In order: a device uses the first enabled voice server whose query matches it. " +
			"One of the kind none leaves its devices without voice, and so does a list of which none fits. " +
			"The one of --voice-upstream is the last."}, a.listUpstreams)
	register(a, operation{id: "get-upstream", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodGet, path: one,
		role: fleet.RoleViewer, noun: "upstream", summary: "Get a voice server"}, a.getUpstream)
	register(a, operation{id: "create-upstream", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPost, path: path,
		role: fleet.RoleAdmin, created: true, summary: "Add a voice server",
		about: "At position, or at the end. Devices that match use it from their next conversation."}, a.createUpstream)
	register(a, operation{id: "update-upstream", reach: access.Fleet, models: fleet.ModelsNever, method: http.MethodPatch, path: one,
		role: fleet.RoleAdmin, noun: "upstream", summary: "Change a voice server",
		about: "Omitted fields stay as they are; position moves it. Open conversations continue unchanged."},
		a.updateUpstream)
	register(a, operation{id: "delete-upstream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin, noun: "upstream", summary: "Remove a voice server"}, a.deleteUpstream)
	register(a, operation{id: "check-upstream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: one + "/check",
		role: fleet.RoleAdmin, noun: "upstream", summary: "Exchange one hello with a voice server now",
		about: "Uses the device id 02:00:00:00:00:01, without tools, for at most nine seconds. A voice server of kind ota may list that device and issue a code for it. A failed exchange still answers 200."},
		a.checkUpstream)
	register(a, operation{id: "match-upstream", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path + "/match", role: fleet.RoleViewer, noun: "device", summary: "Show which voice server a device uses, and why"},
		a.matchUpstream)
}

// UpstreamView is the contract's voice server.
type UpstreamView struct {
	ID        uuid.UUID          `json:"id" format:"uuid"`
	Position  int                `json:"position" doc:"Place in the list, from 0"`
	Name      string             `json:"name"`
	Kind      upstream.Kind      `json:"kind" enum:"websocket,ota,none"`
	URL       string             `json:"url" doc:"Empty for none"`
	Auth      upstream.Auth      `json:"auth" enum:"none,secret,token" doc:"secret: used to create a token for each device; token: the same for all devices"`
	SecretSet bool               `json:"secret_set" doc:"The secret, or token, itself is never shown"`
	Devices   string             `json:"devices" doc:"A query; empty: any device"`
	Tools     bool               `json:"tools" doc:"Its model may list and call the tools of devices"`
	Enabled   bool               `json:"enabled"`
	Fixed     bool               `json:"fixed" doc:"Set with --voice-upstream; it cannot be changed, moved or removed here"`
	UpdatedBy string             `json:"updated_by" doc:"Empty for the one of --voice-upstream"`
	UpdatedAt *time.Time         `json:"updated_at" doc:"null for the voice server of --voice-upstream"`
	Health    upstreamHealthView `json:"health"`
}

// TransformSchema marks updated_at as nullable.
func (UpstreamView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "updated_at")
}

// upstreamHealthView counts how conversations with a voice server began.
type upstreamHealthView struct {
	LastSuccess   *time.Time `json:"last_success" doc:"null: none since the voice server was changed, or none among the last 500 conversations before fleetd started"`
	HelloMs       int64      `json:"hello_ms" doc:"Until its hello, the last time"`
	Failures      int        `json:"failures" doc:"In a row, since the last success. Of the time before fleetd started also conversations that began without a try count"`
	LastFailure   *time.Time `json:"last_failure"`
	Code          string     `json:"code" example:"upstream_unreachable" doc:"Of the last failure; empty before the first"`
	Message       string     `json:"message"`
	Down          bool       `json:"down" doc:"It failed at least three times in a row"`
	RetryAt       *time.Time `json:"retry_at" doc:"Until then fleetd answers devices without trying it; null: it is tried"`
	Conversations int        `json:"conversations" doc:"Open now"`
}

// TransformSchema marks the properties that may be null.
func (upstreamHealthView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "last_success", "last_failure", "retry_at")
}

func upstreamError(code fleet.ConversationEnd) string {
	if code == "" {
		return ""
	}
	return i18n.Text(i18n.English, "upstream.error."+string(code))
}

func viewUpstream(u upstream.State) UpstreamView {
	h := u.Health
	v := UpstreamView{ID: u.ID, Position: u.Position, Name: u.Name, Kind: u.Kind, URL: u.URL, Auth: u.Auth,
		SecretSet: u.Auth != upstream.AuthNone, Devices: u.Devices, Tools: u.Tools, Enabled: u.Enabled, Fixed: u.Fixed,
		UpdatedBy: u.UpdatedBy,
		Health: upstreamHealthView{LastSuccess: utcOrNil(h.LastSuccess), HelloMs: h.HelloIn.Milliseconds(),
			Failures: h.Failures, LastFailure: utcOrNil(h.LastFailure), Code: string(h.LastError),
			Message: upstreamError(h.LastError), Down: h.Down(), RetryAt: utcOrNil(h.RetryAt), Conversations: h.Open}}
	if !u.Fixed {
		v.UpdatedAt = new(utc(u.UpdatedAt))
	}
	return v
}

// UpstreamList is the whole table.
type UpstreamList struct {
	Items   []UpstreamView `json:"items" nullable:"false"`
	Next    *string        `json:"next_cursor" doc:"Always null: the list is complete"`
	Version int64          `json:"version" doc:"Version of the table; every change increments it"`
}

func (a *api) listUpstreams(_ context.Context, by fleet.Principal, _ *struct{}) (*answer[UpstreamList], error) {
	all, version, err := a.Upstreams.List(by)
	if err != nil {
		return nil, err
	}
	l := UpstreamList{Items: make([]UpstreamView, len(all)), Version: version}
	for i, u := range all {
		l.Items[i] = viewUpstream(u)
	}
	return answerWith(l), nil
}

func (a *api) getUpstream(_ context.Context, by fleet.Principal, in *IDPath) (*answer[UpstreamView], error) {
	return a.upstream(a.Upstreams.Upstream(by, in.uuid()))
}

func (a *api) upstream(u upstream.State, err error) (*answer[UpstreamView], error) {
	if err != nil {
		return nil, err
	}
	return answerWith(viewUpstream(u)), nil
}

// UpstreamFields are the settable fields of a voice server; nil leaves one unchanged.
type UpstreamFields struct {
	Name     *string        `json:"name,omitempty" maxLength:"120"`
	Kind     *upstream.Kind `json:"kind,omitempty" enum:"websocket,ota,none" doc:"Default for a new one: websocket"`
	URL      *string        `json:"url,omitempty" maxLength:"500" example:"ws://voice.example.org:8000/xiaozhi/v1/?from=mqtt_gateway" doc:"Without credentials"`
	Auth     *upstream.Auth `json:"auth,omitempty" enum:"none,secret,token" doc:"Default for a new one: none"`
	Secret   *string        `json:"secret,omitempty" maxLength:"1000" doc:"The secret or token, according to auth. Write-only; if omitted, the stored one stays"`
	Devices  *string        `json:"devices,omitempty" maxLength:"1024" example:"tag:lab"`
	Tools    *bool          `json:"tools,omitempty" doc:"Default for a new one: true"`
	Enabled  *bool          `json:"enabled,omitempty" doc:"Default for a new one: true"`
	Position *int           `json:"position,omitempty" minimum:"0" doc:"Place in the list, from 0"`
	Version  int64          `json:"version,omitempty" minimum:"0" doc:"Version of the table on which the change is based; nothing changes if it differs now. 0: any"`
}

func (f *UpstreamFields) change() upstream.Change {
	return upstream.Change{Name: f.Name, Kind: f.Kind, URL: f.URL, Auth: f.Auth, Secret: f.Secret,
		Devices: f.Devices, Tools: f.Tools, Enabled: f.Enabled}
}

type createUpstreamInput struct{ Body UpstreamFields }

func (a *api) createUpstream(ctx context.Context, by fleet.Principal, in *createUpstreamInput) (
	*answer[UpstreamView], error) {
	place := -1
	set(&place, in.Body.Position)
	return a.upstream(a.Upstreams.Create(ctx, by, in.Body.Version, place, in.Body.change()))
}

type updateUpstreamInput struct {
	IDPath
	Body UpstreamFields
}

func (a *api) updateUpstream(ctx context.Context, by fleet.Principal, in *updateUpstreamInput) (
	*answer[UpstreamView], error) {
	id, version, change := in.uuid(), in.Body.Version, in.Body.change()
	var u upstream.State
	var err error
	if change != (upstream.Change{}) || in.Body.Position == nil {
		u, err = a.Upstreams.Update(ctx, by, version, id, change)
		version = 0 // Update has checked it
	}
	if err == nil && in.Body.Position != nil {
		u, err = a.Upstreams.Move(ctx, by, version, id, *in.Body.Position)
	}
	return a.upstream(u, err)
}

type deleteUpstreamInput struct {
	IDPath
	Version int64 `query:"version" minimum:"0" doc:"Version of the table on which the removal is based; nothing is removed if it differs now. 0: any"`
}

func (a *api) deleteUpstream(ctx context.Context, by fleet.Principal, in *deleteUpstreamInput) (*empty, error) {
	return &empty{}, a.Upstreams.Delete(ctx, by, in.Version, in.uuid())
}

// UpstreamCheckView is the result of a test of a voice server.
type UpstreamCheckView struct {
	OK      bool   `json:"ok"`
	TookMs  int64  `json:"took_ms"`
	Code    string `json:"code" example:"upstream_unreachable" doc:"Why it failed; empty if it did not"`
	Message string `json:"message"`
}

func (a *api) checkUpstream(ctx context.Context, by fleet.Principal, in *IDPath) (*answer[UpstreamCheckView], error) {
	c, err := a.Upstreams.Check(ctx, by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(UpstreamCheckView{OK: c.OK, TookMs: c.Took.Milliseconds(), Code: string(c.Error),
		Message: upstreamError(c.Error)}), nil
}

type matchUpstreamInput struct {
	Device string `query:"device" required:"true" minLength:"1" maxLength:"80" doc:"Device id; a MAC address in any form"`
}

// UpstreamMatchView is the voice server that a device gets.
type UpstreamMatchView struct {
	DeviceID fleet.DeviceID       `json:"device_id"`
	Upstream *UpstreamNameView    `json:"upstream" doc:"The one that it uses in its next conversation; null: none matches"`
	Account  *upstreamAccountView `json:"account" doc:"At a voice server of kind ota; null: of another kind, or not asked yet"`
	Voice    bool                 `json:"voice" doc:"False without a voice server, or with one of kind none"`
	Steps    []upstreamStepView   `json:"steps" nullable:"false" doc:"Outcome for each one in the list"`
}

// TransformSchema marks upstream as nullable.
func (UpstreamMatchView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "upstream", "account")
}

// upstreamAccountView is the response of an OTA address for a device.
type upstreamAccountView struct {
	URL     string    `json:"url" doc:"Of the WebSocket that it hands out; empty: none"`
	Code    string    `json:"code" doc:"Code to enter at the voice server, to bind the device to an account; empty: not needed"`
	Message string    `json:"message"`
	AskedAt time.Time `json:"asked_at"`
}

// UpstreamNameView names a voice server.
type UpstreamNameView struct {
	ID   uuid.UUID `json:"id" format:"uuid"`
	Name string    `json:"name"`
}

type upstreamStepView struct {
	UpstreamNameView
	Outcome upstream.Outcome `json:"outcome" enum:"chosen,disabled,unfit,later" doc:"unfit: its query does not match the device; later: an earlier one is chosen"`
	Term    string           `json:"term" doc:"Term of the query that the device does not match"`
}

func (a *api) matchUpstream(ctx context.Context, by fleet.Principal, in *matchUpstreamInput) (
	*answer[UpstreamMatchView], error) {
	id, err := fleet.ParseDeviceID(in.Device)
	if err != nil {
		return nil, err
	}
	m, err := a.Upstreams.Match(ctx, by, id)
	if err != nil {
		return nil, err
	}
	v := UpstreamMatchView{DeviceID: id, Steps: []upstreamStepView{}}
	if u := m.Upstream; u != nil {
		v.Upstream, v.Voice = &UpstreamNameView{u.ID, u.Name}, u.Kind != upstream.None
	}
	if c := m.Account; c != nil {
		v.Account = &upstreamAccountView{URL: c.URL, Code: c.Code, Message: c.Message, AskedAt: utc(c.AskedAt)}
	}
	for _, s := range m.Steps {
		v.Steps = append(v.Steps, upstreamStepView{UpstreamNameView{s.Upstream.ID, s.Upstream.Name}, s.Outcome, s.Term})
	}
	return answerWith(v), nil
}
