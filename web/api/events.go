package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerEvents() {
	register(a, operation{id: "stream-events", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/events", role: fleet.RoleViewer,
		summary: "Stream what changes in the fleet (server-sent events)",
		about: "Each event's data is an Event object. An event is a hint to look, not a record: the stream ends if its reader is too slow, and within a second after its token is revoked, expires or gets other rights. " +
			"Each event has an id; between events the server sends the latest id with a comment. A client that lost its stream connects again with the header Last-Event-ID, as browsers do, and the same parameters: " +
			"the stream begins with the events that it missed. If the server does not know them, because there were too many, the client was away for more than two minutes, or fleetd has restarted or another core leads, " +
			"the first event is `reset`: the client then reads the lists that it shows again.",
		more: func(h *huma.Operation) {
			also[eventView](a, h, "200", "The stream; the schema is that of one event's data")
			event := h.Responses["200"].Content["application/json"]
			h.Responses["200"].Content = map[string]*huma.MediaType{"text/event-stream": event}
		}}, a.streamEvents)
}

type eventsInput struct {
	Kind   []string `query:"kind" enum:"presence,device,inventory,call,snapshot,fanout,campaign,deployment,release,vitals,job,config,core_dump,approval,alert" doc:"One or several, separated by commas. Default: all"`
	Device string   `query:"device" maxLength:"80" doc:"Only events about this device"`
	After  string   `header:"Last-Event-ID" maxLength:"80" doc:"Id of the last event that the client received, to continue after it"`
}

// eventView is the data of one event.
type eventView struct {
	Kind       fleet.EventKind `json:"kind" enum:"reset,presence,device,inventory,call,snapshot,fanout,campaign,deployment,release,vitals,job,config,core_dump,approval,alert"`
	At         time.Time       `json:"at"`
	DeviceID   fleet.DeviceID  `json:"device_id,omitempty"`
	Presence   fleet.Presence  `json:"presence,omitempty"`
	Call       *callView       `json:"call,omitempty"`
	SnapshotID string          `json:"snapshot_id,omitempty"`
	FanOutID   string          `json:"fanout_id,omitempty"`
	CampaignID string          `json:"campaign_id,omitempty" doc:"Of a campaign or a deployment"`
	ReleaseID  string          `json:"release_id,omitempty"`
	Image      string          `json:"image,omitempty" doc:"SHA-256 of a firmware image"`
	JobID      string          `json:"job_id,omitempty"`
	CoreDumpID string          `json:"core_dump_id,omitempty"`
	ApprovalID string          `json:"approval_id,omitempty"`
	AlertID    string          `json:"alert_id,omitempty"`
}

func event(e fleet.Event) eventView {
	v := eventView{Kind: e.Kind, At: utc(e.At), DeviceID: e.Device, Presence: e.Presence}
	if e.Call != nil {
		v.Call = ptr(viewOfCall(*e.Call))
	}
	switch e.Kind {
	case fleet.EventSnapshot:
		v.SnapshotID = e.Subject
	case fleet.EventFanOut:
		v.FanOutID = e.Subject
	case fleet.EventCampaign, fleet.EventDeployed:
		v.CampaignID = e.Subject
	case fleet.EventRelease:
		v.ReleaseID, v.Image = releaseOrImage(e.Subject)
	case fleet.EventJob:
		v.JobID = e.Subject
	case fleet.EventCoreDump:
		v.CoreDumpID = e.Subject
	case fleet.EventApproval:
		v.ApprovalID = e.Subject
	case fleet.EventAlert:
		v.AlertID = e.Subject
	}
	return v
}

// releaseOrImage reports whether the subject of an event is a release or an image: it returns one
// of them, and leaves the other empty.
func releaseOrImage(subject string) (release, image string) {
	if _, err := uuid.Parse(subject); err == nil {
		return subject, ""
	}
	return "", subject
}

// eventReset is the kind of the first event for a client that missed events which are not known.
const eventReset fleet.EventKind = "reset"

// Limits of a stream.
const (
	eventBuffer  = 256 // how many events a reader may be behind
	writeTimeout = 10 * time.Second
)

func (a *api) streamEvents(_ context.Context, by fleet.Principal, in *eventsInput) (*huma.StreamResponse, error) {
	device, err := deviceParam(in.Device)
	if err != nil {
		return nil, err
	}
	leave, tooMany := a.streams.enter(by.ID)
	if tooMany != nil {
		return nil, tooMany
	}
	want := func(e *fleet.Event) bool {
		return (device == "" || e.Device == device) && (len(in.Kind) == 0 || slices.Contains(in.Kind, string(e.Kind)))
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer leave()
		r, w := humachi.Unwrap(c)
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // otherwise nginx would buffer events
		h.Set("Connection", "close")     // the deadlines of the connection are now the stream's
		reader, begin := a.feed.join(in.After, want)
		defer reader.leave()
		s := &stream{w, http.NewResponseController(w), a.eventSources().FilterFor(by)}
		_ = s.conn.SetReadDeadline(time.Time{}) // the client has nothing more to send
		ctx, stop := a.Authority.Follow(r.Context(), by)
		defer stop()
		a.pump(ctx, s, reader, begin)
	}}, nil
}

// pump writes events until the reader disconnects, falls behind, the server stops, or ctx ends
// because its access has ended.
func (a *api) pump(ctx context.Context, s *stream, reader *feedReader, begin position) {
	beat := time.NewTicker(a.Heartbeat)
	defer beat.Stop()
	err := s.write(": fleetd\n\n")
	for _, e := range begin.missed {
		if ctx.Err() == nil && err == nil {
			err = s.event(ctx, e)
		}
	}
	switch {
	case err != nil:
	case begin.reset:
		err = s.send(begin.id, eventView{Kind: eventReset, At: utc(time.Now())})
	default:
		err = s.write("id: " + begin.id + "\n\n")
	}
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case <-a.Stopping:
			return
		case e, open := <-reader.c:
			if !open {
				return
			}
			err = s.event(ctx, e)
		case <-beat.C:
			text := ": still here\n"
			if id, ok := reader.reached(); ok {
				text += "id: " + id + "\n"
			}
			err = s.write(text + "\n")
		}
	}
}

// stream writes server-sent events, each within a deadline.
type stream struct {
	w    http.ResponseWriter
	conn *http.ResponseController

	filter fleet.EventFilter
}

func (a *api) eventSources() *fleet.EventSources {
	return &fleet.EventSources{Device: a.Devices.Known,
		FanOut:   func(ctx context.Context, id uuid.UUID) error { _, err := a.FanOuts.Get(ctx, id); return err },
		Campaign: func(ctx context.Context, id uuid.UUID) error { _, err := a.Campaigns.Campaign(ctx, id); return err },
		Call:     func(ctx context.Context, id uuid.UUID) error { _, err := a.Calls.Get(ctx, id); return err },
		Picture:  func(ctx context.Context, id uuid.UUID) error { _, err := a.Pictures.Snapshot(ctx, id); return err },
		Approval: func(ctx context.Context, by fleet.Principal, id uuid.UUID) error {
			_, err := a.Approvals.Get(ctx, by, id)
			return err
		}}
}

// event writes an event if its subject exists for the principal.
func (s *stream) event(ctx context.Context, e feedEvent) error {
	if !s.filter.Pass(ctx, &e.Event) {
		return nil
	}
	return s.send(e.id, event(e.Event))
}

func (s *stream) send(id string, v eventView) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("id: " + id + "\nevent: " + string(v.Kind) + "\ndata: " + string(data) + "\n\n")
}

func (s *stream) write(text string) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // some writers have no connection
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.conn.Flush()
}
