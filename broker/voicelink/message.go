package voicelink

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/voice"
	"fleetd/fleet"
	"fleetd/fleet/upstream"
)

// The names of the requests.
const (
	askChoose   = "voice/choose"
	askAddress  = "voice/address"
	askTools    = "voice/tools"
	askPrograms = "voice/programs"
	askCall     = "voice/call"
	askRecords  = "voice/records"
	askReport   = "voice/report"
)

// A pass proves that a core chose a voice server for a conversation.
type pass struct {
	Conversation uuid.UUID      `json:"conversation"`
	Device       fleet.DeviceID `json:"device"`
	Upstream     uuid.UUID      `json:"upstream"`
	Name         string         `json:"name"`    // of the upstream
	Written      string         `json:"written"` // see [voice.Upstream.Written]
	NoTools      bool           `json:"no_tools,omitempty"`
	Ticket       []byte         `json:"ticket"`
}

// sign returns the ticket of a pass for an edge.
func (p *pass) sign(key []byte, edge string) []byte {
	mac := hmac.New(sha256.New, key)
	for _, f := range []string{"conversation", edge, p.Conversation.String(), string(p.Device), p.Upstream.String(), p.Name,
		p.Written} {
		mac.Write(binary.AppendUvarint(nil, uint64(len(f))))
		mac.Write([]byte(f))
	}
	if p.NoTools {
		mac.Write([]byte{1})
	}
	return mac.Sum(nil)[:16]
}

// principal is the maker of the conversation's calls.
func (p *pass) principal() fleet.Principal {
	return fleet.Principal{Kind: fleet.KindVoice, ID: p.Conversation.String(), Name: p.Name, Role: fleet.RoleOperator}
}

// The requests and their answers.
type (
	chooseRequest struct {
		Device       fleet.DeviceID `json:"device"`
		Conversation uuid.UUID      `json:"conversation"`
	}
	chooseAnswer struct {
		Pass     *pass        `json:"pass,omitempty"` // nil: the device has no voice server
		Upstream *voiceServer `json:"upstream,omitempty"`
		Language string       `json:"language"`
	}
	voiceServer struct {
		Changed     time.Time `json:"changed"`
		URL         string    `json:"url"`
		Token       string    `json:"token,omitempty"`
		Find        bool      `json:"find,omitempty"` // the address comes with askAddress
		AllowReboot bool      `json:"allow_reboot,omitempty"`
	}
	addressRequest struct {
		Pass    pass   `json:"pass"`
		Refused string `json:"refused,omitempty"` // token
	}
	addressAnswer struct {
		URL   string                `json:"url,omitempty"`
		Token string                `json:"token,omitempty"`
		End   fleet.ConversationEnd `json:"end,omitempty"` // why it has no address
		Cause string                `json:"cause,omitempty"`
	}
	toolsRequest struct {
		Pass pass           `json:"pass"`
		Of   fleet.DeviceID `json:"of"` // the device, or a program
	}
	toolsAnswer struct {
		Board     string       `json:"board"`
		Version   string       `json:"version"`
		Inventory string       `json:"inventory"`
		Tools     []fleet.Tool `json:"tools"`
	}
	programsRequest struct {
		Pass pass `json:"pass"`
	}
	programsAnswer struct {
		Devices []fleet.DeviceID `json:"devices"`
	}
	callRequest struct {
		Pass      pass            `json:"pass"`
		Of        fleet.DeviceID  `json:"of"` // the device, or a program
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments,omitempty"`
		TimeoutMs int64           `json:"timeout_ms,omitempty"`
		Vision    *voice.Vision   `json:"vision,omitempty"` // where the upstream wants pictures of the call
	}
	callAnswer struct {
		State  fleet.CallState  `json:"state"`
		Result json.RawMessage  `json:"result,omitempty"`
		Error  *fleet.CallError `json:"error,omitempty"`
	}
	recordsRequest struct {
		Records []record `json:"records"`
	}
	record struct {
		Pass    pass                  `json:"pass"`
		Begin   time.Time             `json:"begin"`
		End     *time.Time            `json:"end,omitempty"`
		Ended   fleet.ConversationEnd `json:"ended,omitempty"`
		Calls   int64                 `json:"calls"`
		HelloIn time.Duration         `json:"hello_in"`
		Audio   fleet.AudioCounts     `json:"audio"`
	}
	// A reportRequest has the changes of an edge's open conversations since the last report, or all of
	// them.
	reportRequest struct {
		Incarnation uint64         `json:"incarnation"` // of the edge's process
		Number      int64          `json:"number"`      // of the report
		All         bool           `json:"all,omitempty"`
		Begun       []begun        `json:"begun,omitempty"`
		Ended       []uuid.UUID    `json:"ended,omitempty"`
		Health      []healthReport `json:"health,omitempty"`
	}
	begun struct {
		Pass  pass      `json:"pass"`
		Begin time.Time `json:"begin"`
	}
	healthReport struct {
		ID      uuid.UUID       `json:"id"`
		Changed time.Time       `json:"changed"`
		Health  upstream.Health `json:"health"`
	}
	reportAnswer struct {
		Again bool `json:"again"` // report all: this core does not know the earlier ones
	}
	nothing struct{}
)

// A refusal is the answer to a request that failed.
type refusal struct {
	Kind   string       `json:"kind"`
	Code   string       `json:"code,omitempty"` // "" for an error without one
	Params fleet.Params `json:"params,omitempty"`
}

// kinds are the kinds of errors by name. The first that an error matches counts.
var kinds = []struct {
	name string
	err  error
}{
	{"not_found", fleet.ErrNotFound}, {"invalid", fleet.ErrInvalid}, {"forbidden", fleet.ErrForbidden},
	{"conflict", fleet.ErrConflict}, {"too_many", fleet.ErrTooMany}, {"unavailable", fleet.ErrUnavailable},
	{"offline", fleet.ErrOffline}, {"busy", fleet.ErrBusy}, {"lost", fleet.ErrLost}, {"no_answer", fleet.ErrNoAnswer},
}

func refusalOf(err error) refusal {
	var r refusal
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			r.Kind = k.name
			break
		}
	}
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		r.Code, r.Params = e.Code, e.Params
	}
	return r
}

var errFailed = errors.New("the core could not answer")

// err returns the error that the core had.
func (r refusal) err() error {
	kind := errFailed
	for _, k := range kinds {
		if k.name == r.Kind {
			kind = k.err
		}
	}
	if r.Code == "" {
		return fmt.Errorf("answer of the core: %w", kind)
	}
	return &fleet.Error{Kind: kind, Code: r.Code, Params: r.Params}
}
