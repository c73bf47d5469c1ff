package fleet

import "time"

// Evidence is something observed about a device: the only witness of a reboot,
// since a device that reboots does not answer.
type Evidence struct {
	At     time.Time    `json:"at"`
	Kind   EvidenceKind `json:"kind"`
	Detail string       `json:"detail,omitempty"`
	// Reason is the code whose English text is Detail: why a connection ended, of
	// [CauseReasons], what was uploaded, of [UploadReasons], or why a wait ended, of
	// [call.WaitReasons]. Zero if the detail
	// is foreign text, and on records of older versions.
	Reason Reason `json:"reason,omitzero"`
	ELF    string `json:"elf,omitempty"` // boot_poll: the build that the device names; "" if none
	Code   string `json:"-"`             // not_sent, refused: of the call's error, whose message is Detail
}

// Codes of what a device uploaded.
const (
	ReasonPictureUploaded  = "picture_uploaded"
	ReasonCoreDumpUploaded = "core_dump_uploaded"
)

// UploadReasons are the codes of uploads with the names of their parameters.
var UploadReasons = map[string][]string{
	ReasonPictureUploaded: {"media_type", "size_bytes"}, ReasonCoreDumpUploaded: {"size_bytes"},
}

// EvidenceKind names what was observed.
type EvidenceKind string

const (
	EvidenceSent           EvidenceKind = "sent"
	EvidenceAnswer         EvidenceKind = "answer"
	EvidenceDisconnect     EvidenceKind = "disconnect"      // clean MQTT DISCONNECT
	EvidenceConnectionLost EvidenceKind = "connection_lost" // socket ended without one
	EvidenceBootPoll       EvidenceKind = "boot_poll"       // devices poll only at boot
	EvidenceConnect        EvidenceKind = "connect"
	EvidenceUpload         EvidenceKind = "upload"
	EvidenceJob            EvidenceKind = "job"       // the device's own report on its upgrade
	EvidenceWaited         EvidenceKind = "waited"    // a call did not wait any more for the end of a conversation
	EvidenceOnBehalf       EvidenceKind = "on_behalf" // a campaign made the call for whom [call.BehalfReasons] name
)

// Kinds of evidence about upgrades; those about calls stand in call.go.
const (
	EvidencePlanned     EvidenceKind = "planned"
	EvidenceWaveOpened  EvidenceKind = "wave_opened"
	EvidenceDispatched  EvidenceKind = "dispatched"  // link and intent are on record
	EvidenceOffered     EvidenceKind = "offered"     // in the answer to a boot poll
	EvidenceNotSent     EvidenceKind = "not_sent"    // the call did not leave: offline, busy, refused
	EvidenceRefused     EvidenceKind = "refused"     // the device answered the call with an error
	EvidenceLateAnswer  EvidenceKind = "late_answer" // after the download: the device did not restart
	EvidenceGet         EvidenceKind = "get"         // of the attempt's link
	EvidenceBytes       EvidenceKind = "bytes"       // progress of the download; makes no event row
	EvidenceCut         EvidenceKind = "cut"         // the transfer ended before the last byte
	EvidenceDownloaded  EvidenceKind = "downloaded"  // the last byte was sent
	EvidenceInitialize  EvidenceKind = "initialize"  // MCP initialize and tools/list
	EvidenceProbe       EvidenceKind = "probe"       // the device answered a request that a restarting one cannot
	EvidenceHealthy     EvidenceKind = "healthy"     // every health check passed
	EvidenceUnhealthy   EvidenceKind = "unhealthy"   // one did not
	EvidenceTimer       EvidenceKind = "timer"       // the step's deadline passed
	EvidenceRetry       EvidenceKind = "retry"       // the attempt failed and will be repeated
	EvidenceRevoked     EvidenceKind = "revoked"     // the link was revoked
	EvidenceCanceled    EvidenceKind = "canceled"    // by an operator, another campaign, or the campaign's end
	EvidenceRetired     EvidenceKind = "retired"     // the device left service
	EvidenceRestarted   EvidenceKind = "fleetd_start"
	EvidenceUnfit       EvidenceKind = "unfit" // the device does not fit any more
	EvidenceQuarantined EvidenceKind = "quarantined"
)
