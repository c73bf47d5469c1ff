package gateway

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28, and what clients have

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// A logLine is the data of a log message. The SDK drops messages below the level of the
// session, or of the request since 2026-07-28; without a level it sends none.
type logLine struct {
	Event    string         `json:"event"`
	Text     string         `json:"text"`
	Device   fleet.DeviceID `json:"device,omitempty"`
	Call     string         `json:"call,omitempty"`
	FanOut   string         `json:"fanout,omitempty"`
	Approval string         `json:"approval,omitempty"`
	State    string         `json:"state,omitempty"`
	By       string         `json:"by,omitempty"`     // name of a person
	Reason   string         `json:"reason,omitempty"` // written by a person
	Logger   string         `json:"logger,omitempty"` // of a program
	Words    *deviceText    `json:"device_text,omitempty"`
	Done     int            `json:"done,omitempty"`
	Targets  int            `json:"targets,omitempty"`
}

// Levels of log lines.
const (
	levelInfo   mcp.LoggingLevel = "info"
	levelNotice mcp.LoggingLevel = "notice"
)

// say sends a log message to a session. Within a request it goes out with the answer.
func say(ctx context.Context, s *mcp.ServerSession, level mcp.LoggingLevel, line logLine) {
	// The client may be gone, and the log message is not a record.
	_ = s.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "fleetd", Data: line})
}

// noteLevels registers the sessions that set a log level: they get log messages even
// without a request.
func (g *Gateway) noteLevels(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, req)
		if session, ok := req.GetSession().(*mcp.ServerSession); ok && method == "logging/setLevel" && err == nil {
			g.watches.log(session, callerOf(ctx))
		}
		return result, err
	}
}

// logHold reports a hold or its release to the sessions whose scope includes the device.
func (g *Gateway) logHold(ctx context.Context, e fleet.Event) {
	loggers := g.watches.loggers("")
	if len(loggers) == 0 {
		return
	}
	d, err := g.o.Devices.Device(ctx, e.Device)
	if err != nil {
		return
	}
	line := logLine{Event: "device_" + string(e.Hold), Device: d.ID,
		Text: fmt.Sprintf("Device %s was %s", d.ID, e.Hold)}
	if h := g.hold(d); h != nil && e.Hold == fleet.HoldBegan {
		line.By, line.Reason = h.By, h.Reason
	}
	for session, by := range loggers {
		if by.Sees(d) {
			say(ctx, session, levelNotice, line)
		}
	}
}

// logApproval reports the outcome of an approval to the sessions of the token that
// requested it.
func (g *Gateway) logApproval(ctx context.Context, e fleet.Event) {
	id, err := uuid.Parse(e.Subject)
	if err != nil {
		return
	}
	for session, by := range g.watches.loggers("") {
		a, err := g.o.Approvals.Get(fleet.WithScope(ctx, *by), *by, id)
		if err != nil || !a.AskedBy.Same(*by) {
			continue
		}
		line := logLine{Event: "approval", Approval: a.ID.String(), State: string(a.StateAt(g.now())), Device: a.Device}
		if a.Subject == call.ApprovalOfFanOut {
			line.FanOut = a.SubjectID.String()
		} else {
			line.Call = a.SubjectID.String()
		}
		if a.DecidedAt != nil {
			line.By, line.Reason = fleet.CleanText(a.DecidedBy.Name, maxName), fleet.CleanText(a.Reason, maxSummary)
		}
		line.Text = fmt.Sprintf("Approval %s of %s is %s", a.ID, fleet.CleanText(a.Tool, maxName), line.State)
		say(ctx, session, levelNotice, line)
	}
}

// logs reports whether the answer to a request may carry log messages.
func (g *Gateway) logs(req *mcp.CallToolRequest) bool {
	s := &g.watches
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.by[req.Session]
	return w != nil && w.logs || req.Params.Meta[mcp.MetaKeyLogLevel] != nil
}
