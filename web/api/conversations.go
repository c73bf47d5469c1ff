package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerConversations() {
	register(a, operation{id: "list-conversations", reach: access.List, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/conversations", role: fleet.RoleViewer,
		summary: "List conversations of devices with voice servers, newest first",
		about: "Only their circumstances are recorded, no audio and no words. The calls of a conversation are those " +
			"whose actor has its id: /calls?conversation= lists them."}, a.listConversations)
	register(a, operation{id: "get-conversation", reach: access.Record, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/conversations/{id}", role: fleet.RoleViewer, noun: "conversation",
		summary: "Show a conversation"}, a.getConversation)
}

type conversationView struct {
	ID         uuid.UUID             `json:"id" format:"uuid"`
	DeviceID   fleet.DeviceID        `json:"device_id"`
	Upstream   string                `json:"upstream" doc:"Name of the voice server"`
	BeginAt    time.Time             `json:"begin_at"`
	EndAt      *time.Time            `json:"end_at" doc:"null while it is open"`
	Ended      fleet.ConversationEnd `json:"ended,omitempty" doc:"Ending, as a code; codes that begin with upstream_ concern the voice server"`
	DurationMs *int64                `json:"duration_ms" doc:"null while it is open"`
	HelloMs    int64                 `json:"hello_ms" doc:"Until the voice server answered; 0 if it did not"`
	Calls      int64                 `json:"calls" doc:"Tool calls requested by the voice server's model"`
	Audio      audioView             `json:"audio"`
}

type audioView struct {
	Received int64   `json:"received" doc:"Packets from the device"`
	Lost     int64   `json:"lost" doc:"Packets from the device that did not arrive"`
	Refused  int64   `json:"refused" doc:"Packets that were replayed, forged or damaged"`
	Dropped  int64   `json:"dropped" doc:"Packets that came too late, in both directions"`
	Sent     int64   `json:"sent" doc:"Packets to the device"`
	Moves    int64   `json:"moves" doc:"Changes of the device's address"`
	JitterMs float64 `json:"jitter_ms" doc:"Of packets from the device, smoothed as in RFC 3550"`
}

func conversation(c fleet.Conversation) conversationView {
	v := conversationView{ID: c.ID, DeviceID: c.Device, Upstream: c.Upstream, BeginAt: utc(c.Begin), Ended: c.Ended,
		HelloMs: c.HelloIn.Milliseconds(), Calls: c.Calls,
		Audio: audioView{Received: c.Audio.Received, Lost: c.Audio.Lost, Refused: c.Audio.Refused, Dropped: c.Audio.Dropped,
			Sent: c.Audio.Sent, Moves: c.Audio.Moves, JitterMs: float64(c.Audio.Jitter.Microseconds()) / 1000}}
	if c.End != nil {
		v.EndAt, v.DurationMs = ptr(utc(*c.End)), ptr(c.End.Sub(c.Begin).Milliseconds())
	}
	return v
}

type listConversationsInput struct {
	Device   string    `query:"device" maxLength:"80" doc:"Device id; a MAC address in any form"`
	Upstream string    `query:"upstream" maxLength:"200" doc:"Name of the voice server"`
	End      string    `query:"end" maxLength:"40" doc:"Ending, as a code; open: not ended; failed: all failures"`
	Since    time.Time `query:"since" doc:"Begun at or after this time"`
	Until    time.Time `query:"until" doc:"Begun before this time"`
	Paging
}

func (a *api) listConversations(ctx context.Context, _ fleet.Principal,
	in *listConversationsInput) (*answer[list[conversationView]], error) {
	device, err := deviceParam(in.Device)
	if err != nil {
		return nil, err
	}
	ends, err := fleet.ParseConversationEnds(in.End)
	if err != nil {
		return nil, err
	}
	page, err := a.Conversations.Conversations(ctx, fleet.ConversationFilter{Device: device, Upstream: in.Upstream,
		Ends: ends, Since: in.Since, Until: in.Until, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return pageOf(page, conversation), nil
}

func (a *api) getConversation(ctx context.Context, _ fleet.Principal, in *IDPath) (*answer[conversationView], error) {
	c, err := a.Conversations.Conversation(ctx, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(conversation(c)), nil
}
