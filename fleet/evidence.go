package fleet

import "time"

// Evidence is an observation about a device. It is the only proof of a reboot, since a
// rebooting device does not answer.
type Evidence struct {
	At     time.Time    `json:"at"`
	Kind   EvidenceKind `json:"kind"`
	Detail string       `json:"detail,omitempty"`
	// Reason is the code behind Detail, which is its English text. It is one of
	// [CauseReasons] for the end of a connection, of [UploadReasons] for an upload, and of
	// [call.WaitReasons] for the end of a wait. It is zero if the detail is foreign text, and
	// in records of older versions.
	Reason Reason `json:"reason,omitzero"`
	ELF    string `json:"elf,omitempty"` // boot_poll: the build that the device reported; "" if none
	Code   string `json:"-"`             // not_sent, refused: code of the call's error; Detail is its message
}

// Codes of uploads by devices.
const (
	ReasonPictureUploaded  = "picture_uploaded"
	ReasonCoreDumpUploaded = "core_dump_uploaded"
)

// UploadReasons maps the codes of uploads to the names of their parameters.
var UploadReasons = map[string][]string{
	ReasonPictureUploaded: {"media_type", "size_bytes"}, ReasonCoreDumpUploaded: {"size_bytes"},
}

// EvidenceKind is the kind of an observation.
type EvidenceKind string

const (
	EvidenceSent           EvidenceKind = "sent"
	EvidenceAnswer         EvidenceKind = "answer"
	EvidenceDisconnect     EvidenceKind = "disconnect"      // clean MQTT DISCONNECT
	EvidenceConnectionLost EvidenceKind = "connection_lost" // socket closed without a DISCONNECT
	EvidenceBootPoll       EvidenceKind = "boot_poll"       // devices poll only at boot
	EvidenceConnect        EvidenceKind = "connect"
	EvidenceUpload         EvidenceKind = "upload"
	EvidenceJob            EvidenceKind = "job"       // the device's own report on its upgrade
	EvidenceWaited         EvidenceKind = "waited"    // a call stopped waiting for a conversation to end
	EvidenceOnBehalf       EvidenceKind = "on_behalf" // a campaign made the call for another; see [call.BehalfReasons]
)

// Kinds of evidence about upgrades; call.go has the kinds about calls.
const (
	EvidencePlanned     EvidenceKind = "planned"
	EvidenceWaveOpened  EvidenceKind = "wave_opened"
	EvidenceDispatched  EvidenceKind = "dispatched"  // link and intent are on record
	EvidenceOffered     EvidenceKind = "offered"     // in the answer to a boot poll
	EvidenceNotSent     EvidenceKind = "not_sent"    // the call was not sent: offline, busy, refused
	EvidenceRefused     EvidenceKind = "refused"     // the device answered the call with an error
	EvidenceLateAnswer  EvidenceKind = "late_answer" // after the download: the device did not restart
	EvidenceGet         EvidenceKind = "get"         // the device requested the attempt's link
	EvidenceBytes       EvidenceKind = "bytes"       // progress of the download; makes no event row
	EvidenceCut         EvidenceKind = "cut"         // the transfer ended before the last byte
	EvidenceDownloaded  EvidenceKind = "downloaded"  // the last byte was sent
	EvidenceInitialize  EvidenceKind = "initialize"  // MCP initialize and tools/list
	EvidenceProbe       EvidenceKind = "probe"       // the device answered a request, which a restarting device cannot
	EvidenceHealthy     EvidenceKind = "healthy"     // every health check passed
	EvidenceUnhealthy   EvidenceKind = "unhealthy"   // a health check failed
	EvidenceTimer       EvidenceKind = "timer"       // the step's deadline passed
	EvidenceRetry       EvidenceKind = "retry"       // the attempt failed and will be repeated
	EvidenceRevoked     EvidenceKind = "revoked"     // the link was revoked
	EvidenceCanceled    EvidenceKind = "canceled"    // by an operator, another campaign, or the campaign's end
	EvidenceRetired     EvidenceKind = "retired"     // the device left service
	EvidenceRestarted   EvidenceKind = "fleetd_start"
	EvidenceUnfit       EvidenceKind = "unfit" // the device no longer fits
	EvidenceQuarantined EvidenceKind = "quarantined"
)
