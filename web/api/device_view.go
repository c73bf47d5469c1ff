package api

import (
	"cmp"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
)

// deviceView is the contract's device object.
type deviceView struct {
	ID                     fleet.DeviceID   `json:"id" doc:"Twelve hex digits of the MAC address, or the id of another dialect"`
	Kind                   fleet.DeviceKind `json:"kind" enum:"esp32,mqtt5,plugin,endpoint" doc:"esp32: a board with boot polls; mqtt5: MCP over MQTT 5; plugin: an MCP server that fleetd runs or connects to; endpoint: one that connects to fleetd"`
	MAC                    string           `json:"mac" doc:"The MAC address with colons; empty if the id is not a MAC address"`
	Name                   string           `json:"name"`
	Board                  string           `json:"board"`
	BoardType              string           `json:"board_type"`
	Chip                   string           `json:"chip" doc:"Pinned with the board when the device was let in"`
	Version                string           `json:"version" doc:"Running firmware"`
	ELFSHA256              string           `json:"elf_sha256"`
	Slot                   string           `json:"slot" doc:"Running OTA slot"`
	Language               string           `json:"language"`
	Presence               fleet.Presence   `json:"presence" enum:"pending,online,unresponsive,unknown_edge,offline"`
	PresenceSince          *time.Time       `json:"presence_since"`
	PresenceEvidence       string           `json:"presence_evidence" doc:"Evidence for the presence"`
	PresenceEvidenceCode   string           `json:"presence_evidence_code" doc:"Reason code of presence_evidence; empty if there is none" example:"connected"`
	PresenceEvidenceParams map[string]any   `json:"presence_evidence_params" doc:"Parameters of the code"`
	LastSeen               *time.Time       `json:"last_seen"`
	LastPoll               *time.Time       `json:"last_poll"`
	Transport              string           `json:"transport" doc:"Of the latest connection: mqtt, mqtts or ws; empty before the first"`
	TransportChoice        fleet.Transport  `json:"transport_choice" enum:"mqtt,ws" doc:"Transport from its next start"`
	ForConversations       bool             `json:"for_conversations" doc:"Since its latest start it connects only during conversations, so offline is normal"`
	RemoteAddr             string           `json:"remote_addr"`
	Edge                   string           `json:"edge" doc:"Node that holds its connection, in a cluster an edge; empty while it is not connected"`
	Enrolment              fleet.Enrolment  `json:"enrolment" enum:"waiting,enrolled,rejected"`
	EnrolledAt             *time.Time       `json:"enrolled_at"`
	Tags                   []string         `json:"tags" nullable:"false"`
	Notes                  string           `json:"notes"`
	Hold                   *holdView        `json:"hold"`
	Conflict               *idConflictView  `json:"conflict" doc:"Evidence that two units use this id, while the conflict lasts"`
	Claimed                *claimedView     `json:"claimed" doc:"Board or chip that the device has reported since it was let in, if different from the pinned one; has no effect until accepted"`
	InventoryID            string           `json:"inventory_id" doc:"Names its list of tools; empty before the first"`
	InventoryAt            *time.Time       `json:"inventory_at"`
	ToolsCount             int              `json:"tools_count"`
	TimeZone               string           `json:"time_zone" doc:"IANA name, of its maintenance windows; empty is the server's"`
	Campaign               *uuid.UUID       `json:"campaign" format:"uuid" nullable:"true" doc:"Id of the campaign in which the device waits or works"`
	CreatedAt              time.Time        `json:"created_at"`
	RetiredAt              *time.Time       `json:"retired_at"`
	ReplacedBy             *fleet.DeviceID  `json:"replaced_by"`
	Replaces               *fleet.DeviceID  `json:"replaces" doc:"The unit that it replaced"`
}

// TransformSchema marks hold, conflict and claimed as nullable.
func (deviceView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "hold", "conflict", "claimed")
}

type holdView struct {
	Reason string     `json:"reason"`
	By     string     `json:"by" doc:"Name of the principal that holds the device"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until" doc:"null: until released"`
}

// device returns the view of a device that belongs to the given campaign, if any.
func (a *api) device(d fleet.Device, campaign uuid.UUID) deviceView {
	v := deviceView{ID: d.ID, Kind: d.Kind, MAC: d.ID.MAC(), Name: d.Name, Board: d.Board,
		BoardType: d.BoardType, Chip: d.Chip, Version: d.Version, ELFSHA256: d.ELFSHA256, Slot: d.Slot, Language: d.Language,
		Presence: d.Presence, PresenceSince: utcOrNil(&d.PresenceSince), PresenceEvidence: because(d.PresenceEvidence),
		PresenceEvidenceCode: d.PresenceEvidence.Code, PresenceEvidenceParams: paramsOf(d.PresenceEvidence),
		LastSeen: utcOrNil(d.LastSeen), LastPoll: utcOrNil(d.LastPoll), Transport: d.Transport,
		TransportChoice: cmp.Or(d.TransportChoice, fleet.TransportMQTT), ForConversations: d.ConnectsForConversations(),
		RemoteAddr: d.RemoteAddr, Edge: d.Edge, Enrolment: d.Enrolment, EnrolledAt: utcOrNil(d.EnrolledAt),
		Tags:  orEmpty(d.Tags),
		Notes: d.Notes, Hold: hold(d.Hold), Conflict: conflict(d), Claimed: claimed(d),
		InventoryID: d.InventoryID, InventoryAt: utcOrNil(d.InventoryAt), ToolsCount: d.ToolsCount,
		TimeZone: d.TimeZone, Campaign: orNil(campaign), CreatedAt: utc(d.CreatedAt), RetiredAt: utcOrNil(d.RetiredAt)}
	if d.ReplacedBy != "" {
		v.ReplacedBy = &d.ReplacedBy
	}
	if d.Replaces != "" {
		v.Replaces = &d.Replaces
	}
	return v
}

// hold returns the view of a hold in force, or nil for an expired one.
func hold(h *fleet.Hold) *holdView {
	if !h.Active(time.Now()) {
		return nil
	}
	return &holdView{Reason: h.Reason, By: h.By.Name, Since: utc(h.Since), Until: utcOrNil(h.Until)}
}

type idConflictView struct {
	Code      fleet.ConflictCode       `json:"code" enum:"duplicate_device_id"`
	Evidence  []fleet.ConflictEvidence `json:"evidence" nullable:"false" enum:"client_ids_alternate,both_alive,takeovers_alternate,connection_answers,addresses_alternate,device_key_missing,device_key_wrong" doc:"Each kind once"`
	FirstSeen time.Time                `json:"first_seen"`
	LastSeen  time.Time                `json:"last_seen" doc:"Time of the latest evidence; the conflict ends a day later"`
	Sides     []conflictSideView       `json:"sides" nullable:"false"`
}

type claimedView struct {
	Board     string    `json:"board"`
	BoardType string    `json:"board_type"`
	Chip      string    `json:"chip"`
	At        time.Time `json:"at" doc:"Of the boot poll that claimed it"`
}

// claimed returns the board and chip that the device reports, if they differ from the pinned ones.
func claimed(d fleet.Device) *claimedView {
	if d.Claimed == nil {
		return nil
	}
	return &claimedView{d.Claimed.Board, d.Claimed.BoardType, d.Claimed.Chip, utc(d.Claimed.At)}
}

type conflictSideView struct {
	Client     string    `json:"client" doc:"Names the Client-Id without giving it away"`
	Bound      bool      `json:"bound" doc:"The device's credentials are bound to this Client-Id"`
	RemoteAddr string    `json:"remote_addr"`
	Chip       string    `json:"chip"`
	Board      string    `json:"board"`
	Version    string    `json:"version"`
	ELFSHA256  string    `json:"elf_sha256"`
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"`
}

// conflict returns the view of an unresolved conflict.
func conflict(d fleet.Device) *idConflictView {
	c := d.Conflict
	if !c.Active(time.Now()) || d.RetiredAt != nil {
		return nil
	}
	v := &idConflictView{Code: c.Code, Evidence: orEmpty(c.Evidence), FirstSeen: utc(c.FirstSeen),
		LastSeen: utc(c.LastSeen),
		Sides:    []conflictSideView{}}
	for _, s := range c.Sides {
		v.Sides = append(v.Sides, conflictSideView{Client: s.Client, Bound: s.Bound, RemoteAddr: s.RemoteAddr, Chip: s.Chip,
			Board: s.Board, Version: s.Version, ELFSHA256: s.ELFSHA256, FirstSeen: utc(s.FirstSeen), LastSeen: utc(s.LastSeen)})
	}
	return v
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
