package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/web/console/pages"

	"fleetd/fleet"
	"fleetd/fleet/blobs"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/mail"
	"fleetd/fleet/operator"
	"fleetd/fleet/outbound"
	"fleetd/fleet/postgres"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/fleet/telemetry"
)

// A UsageError is a mistake in the configuration, or on the command line of a
// command, that the parser could not find.
type UsageError struct{ error }

// Database names the database and the data directory. The server shares it with the commands that
// work directly on the database.
type Database struct {
	// DataDir is the directory of the embedded PostgreSQL, pictures, firmware and the secret key.
	// It is created if it is missing. Default: ./data.
	DataDir string `help:"Directory for the embedded PostgreSQL, pictures and the secret key." default:"./data" env:"FLEETD_DATA_DIR" type:"path"`

	// DatabaseURL is the address of a PostgreSQL, version 15 or later, to use instead of the
	// embedded one.
	DatabaseURL string `help:"PostgreSQL to use instead of the embedded one: postgres://user:password@host/db." env:"FLEETD_DATABASE_URL,DATABASE_URL" placeholder:"URL"`

	// DatabaseURLFile is a file that contains DatabaseURL. Other fields with this ending do the
	// same for their secrets: everybody on the machine can read a secret on the command line.
	DatabaseURLFile string `name:"database-url-file" help:"File that contains the URL." env:"FLEETD_DATABASE_URL_FILE" type:"path" placeholder:"FILE"`
}

// Config configures a server. The zero value of each field means its default. The command line
// fills a Config from flags and environment; a program that embeds the server sets the fields that
// it needs. Addresses to listen on are host:port; port 0 picks a free port.
type Config struct {
	Database

	// BlobURL is the storage for pictures, firmware and core dumps: file:///path, or
	// s3://bucket/prefix?endpoint=https://host&region=name with credentials from the environment.
	// Default: blobs below DataDir.
	BlobURL string `help:"Where to store pictures, firmware and core dumps: file:///path or s3://bucket/prefix?endpoint=https://host&region=name. S3 takes its credentials from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Default: blobs in the data directory." env:"FLEETD_BLOB_URL" placeholder:"URL"`

	// BlobsShared says that a directory of BlobURL is the same one on every machine whose fleetd
	// may serve the database, for example a network file system.
	BlobsShared bool `name:"blobs-shared" help:"The directory of --blob-url is shared by all machines whose fleetd may take the database over. Required with --standby, unless --blob-url is s3://." env:"FLEETD_BLOBS_SHARED"`

	// Standby makes Start wait while another fleetd serves the database, however long, and take
	// over when that ends. Without it, Start returns an error then. Needs DatabaseURL, and pictures
	// and firmware that this machine shares with the other.
	Standby bool `help:"While another fleetd serves the database, stand by and take over when it ends; without this, the start fails." env:"FLEETD_STANDBY"`

	ClusterConfig

	// PluginsDir is the directory with manifests of plug-ins, NAME.yaml. Default: none.
	PluginsDir string `name:"plugins-dir" help:"Directory with the manifests of plug-ins, NAME.yaml: MCP servers whose tools join the fleet." env:"FLEETD_PLUGINS_DIR" type:"path" placeholder:"DIR"`

	// HTTPAddr is the listen address of the console, REST and the device endpoints. Default: :8080.
	HTTPAddr string `help:"Address of the console, REST and the device endpoints." default:":8080" env:"FLEETD_HTTP_ADDR"`

	// MQTTAddr is the listen address of the broker without TLS. Default: :1883.
	MQTTAddr string `name:"mqtt-addr" help:"Address of the MQTT broker." default:":1883" env:"FLEETD_MQTT_ADDR"`

	// MQTTSAddr is the listen address of the broker with TLS. Default: :8883 with a certificate,
	// off without.
	MQTTSAddr string `name:"mqtts-addr" help:"Address of the MQTT broker for TLS; needs a certificate. Default: :8883 with a certificate, else off." env:"FLEETD_MQTTS_ADDR"`

	// TLSCert and TLSKey are PEM files: the certificate chain of the broker and its private key.
	// Set both or neither. The server reads them again when they change.
	TLSCert string `help:"Certificate chain (PEM) of the TLS broker." env:"FLEETD_TLS_CERT" type:"existingfile" placeholder:"FILE"`
	TLSKey  string `help:"Private key (PEM) of the TLS broker." env:"FLEETD_TLS_KEY" type:"existingfile" placeholder:"FILE"`

	// ClientCA is a PEM file with the authorities whose certificates devices of MCP over MQTT 5 may present
	// on the TLS broker, in place of user name and password.
	ClientCA string `name:"mqtts-client-ca" help:"Authorities (PEM) whose client certificates may replace user name and password on the TLS broker: for devices of MCP over MQTT 5 that were created, with their client id as the certificate's common name." env:"FLEETD_MQTTS_CLIENT_CA" type:"existingfile" placeholder:"FILE"`

	// EventsMQTTAddr and EventsMQTTSAddr are the listen addresses of the MQTT broker on which programs with an
	// API token subscribe to events, without TLS and with it. Default: none.
	EventsMQTTAddr  string `name:"events-mqtt-addr" help:"Address of the MQTT broker for events, without TLS: programs subscribe to fleet/events/# with an API token as password. Default: none." env:"FLEETD_EVENTS_MQTT_ADDR" placeholder:"ADDR"`
	EventsMQTTSAddr string `name:"events-mqtts-addr" help:"Address of the same with TLS; needs a certificate. Default: none." env:"FLEETD_EVENTS_MQTTS_ADDR" placeholder:"ADDR"`

	// HomeAssistant also serves Home Assistant at these addresses.
	HomeAssistant bool `name:"home-assistant" help:"Also serve Home Assistant there: devices are discovered, and simple tools become buttons, switches and numbers." env:"FLEETD_HOME_ASSISTANT"`

	// ProxyProtocol lists networks (CIDR) or addresses of load balancers in front of the broker. A
	// connection from one of them must begin with a header of the PROXY protocol, version 2; any
	// other must not.
	ProxyProtocol []string `name:"proxy-protocol-from" help:"Addresses (CIDR) of load balancers in front of the MQTT addresses. Their connections must begin with a PROXY protocol header, version 2; from other addresses that header is refused." env:"FLEETD_PROXY_PROTOCOL_FROM" placeholder:"CIDR"`

	// MaxHTTPConnections bounds the connections of the HTTP address, and MaxHTTPPerAddress those of
	// one client address, except loopback and trusted proxies. Default: a tenth of the limit of
	// open files, at least 256; a quarter of that.
	MaxHTTPConnections int `name:"max-http-connections" help:"Maximum number of open connections at the HTTP address. Default: a tenth of the process's file limit, at least 256." env:"FLEETD_MAX_HTTP_CONNECTIONS" placeholder:"N"`
	MaxHTTPPerAddress  int `name:"max-http-connections-per-address" help:"Maximum number of these from one client address (or IPv6 /64); this machine and trusted proxies have no limit. Default: a quarter of all." env:"FLEETD_MAX_HTTP_CONNECTIONS_PER_ADDRESS" placeholder:"N"`

	// AdminHosts are additional host names that the admin address accepts.
	AdminHosts []string `name:"admin-host" help:"Host name (Host header) allowed at the admin address, in addition to localhost and the address itself; can be repeated." env:"FLEETD_ADMIN_HOSTS" placeholder:"HOST"`

	// AllowOutbound are local or reserved addresses (host:port) to which voice servers may direct
	// fleetd.
	AllowOutbound []string `name:"allow-outbound" help:"Address (host:port) on this machine that a voice server may hand out, such as its WebSocket next to its OTA address; can be repeated. Other addresses on this machine are refused." env:"FLEETD_ALLOW_OUTBOUND" placeholder:"HOST:PORT"`

	// TrustedProxies lists networks (CIDR) or addresses of HTTP proxies whose X-Forwarded-For is
	// trusted. Loopback is always trusted.
	TrustedProxies []string `name:"trusted-proxies" help:"Addresses (CIDR) of proxies in front of the HTTP address whose X-Forwarded-For is trusted. Proxies on this machine are always trusted." env:"FLEETD_TRUSTED_PROXIES" placeholder:"CIDR"`

	// AdminAddr is the address of /metrics, /healthz, /readyz and /debug/pprof, without
	// credentials. Default: 127.0.0.1:9464.
	AdminAddr string `help:"Address of /metrics, /healthz, /readyz and /debug/pprof." default:"127.0.0.1:9464" env:"FLEETD_ADMIN_ADDR"`

	// PublicURL is the address at which devices and browsers reach this server, http or https, with
	// a path if a proxy adds one. Default: http, an address of this machine, and the port of
	// HTTPAddr.
	PublicURL string `help:"Address at which devices and browsers reach this server. Default: derived from the HTTP address." env:"FLEETD_PUBLIC_URL" placeholder:"URL"`

	// MQTTEndpoint is the host:port of the broker that the server gives to devices. To a device,
	// port 8883 means TLS. Default: the host of PublicURL and the port of MQTTAddr.
	MQTTEndpoint string `name:"mqtt-endpoint" help:"host:port of the broker to give to devices. Default: the host of the public URL and the broker's port." env:"FLEETD_MQTT_ENDPOINT" placeholder:"HOST:PORT"`

	// MQTTKeepalive is what stock boards get for their MQTT connection, 10 s to 1 h. Default: 60 s.
	MQTTKeepalive time.Duration `name:"mqtt-keepalive" help:"MQTT keepalive of stock boards, 10s to 1h: they ping twice as often, and one that is gone is offline after 1.5 times as long." default:"60s" env:"FLEETD_MQTT_KEEPALIVE"`

	// Styleguide shows administrators /styleguide, the components of the console: for "make dev".
	Styleguide bool `hidden:"" env:"FLEETD_STYLEGUIDE"`

	// Enrolment is how an unknown device joins: code, approve or open. Default: code.
	Enrolment string `help:"How unknown devices join: by code, by approval, or at once (open)." enum:"code,approve,open" default:"code" env:"FLEETD_ENROLMENT"`

	// MaxWaiting bounds the devices that wait to be enrolled, 1 to 100,000. Default: 10,000.
	MaxWaiting int `help:"Maximum number of devices waiting to be enrolled." default:"10000" env:"FLEETD_MAX_WAITING" placeholder:"N"`

	// MaxWaitingNet bounds the waiting devices of one network. Default: 500.
	MaxWaitingNet int `name:"max-waiting-per-network" help:"Maximum number of these from one network; this machine's own address has no limit." default:"500" env:"FLEETD_MAX_WAITING_PER_NETWORK" placeholder:"N"`

	// WaitingBits4 and WaitingBits6 are the lengths of the network prefix of an address, in bits.
	// Default: 24 of IPv4, 64 of IPv6.
	WaitingBits4 int `name:"waiting-network-bits-v4" help:"Length of the network prefix of an IPv4 address, in bits." default:"24" env:"FLEETD_WAITING_NETWORK_BITS_V4" placeholder:"BITS"`
	WaitingBits6 int `name:"waiting-network-bits-v6" help:"Length of the network prefix of an IPv6 address, in bits." default:"64" env:"FLEETD_WAITING_NETWORK_BITS_V6" placeholder:"BITS"`

	// SerialProof is what happens to a device that proves its serial number: accept lets it join,
	// mark leaves the decision to an operator. Default: accept.
	SerialProof string `help:"What happens to a device that proves its serial number: it joins at once (accept), or it is marked for an operator to decide (mark)." enum:"accept,mark" default:"accept" env:"FLEETD_SERIAL_PROOF"`

	// AdminPassword is the password of the operator admin, who is created at the first start; at
	// least operator.MinPassword characters. Default: generated; Greet prints it.
	AdminPassword string `help:"Password of the first operator, admin, set at the first start. Default: generated and printed once." env:"FLEETD_ADMIN_PASSWORD" placeholder:"PASSWORD"`

	AdminPasswordFile string `name:"admin-password-file" help:"File that contains this password." env:"FLEETD_ADMIN_PASSWORD_FILE" type:"path" placeholder:"FILE"`

	// SessionIdle is how long a browser stays signed in without a request; open live pages do not
	// count. With 0, a browser is signed out only after 7 days. The command line sets 12 hours by
	// default.
	SessionIdle time.Duration `help:"Sign a browser out after this time without use; 0: only after 7 days." default:"12h" env:"FLEETD_SESSION_IDLE"`

	// LogFormat is text or json; LogLevel is the lowest level to log: debug, info, warn or error.
	// Both configure the default of Log. Default: text, info.
	LogFormat string `help:"Log format." enum:"text,json" default:"text" env:"FLEETD_LOG_FORMAT"`
	LogLevel  string `help:"Lowest level to log." enum:"debug,info,warn,error" default:"info" env:"FLEETD_LOG_LEVEL"`

	// NodeName is the name of this server in records. Default: the host name.
	NodeName string `help:"Name of this server in records. Default: the host name." env:"FLEETD_NODE_NAME" placeholder:"NAME"`

	// Retention is how long the server keeps calls, audit entries and pictures. 0 keeps them for
	// ever, except the history of vitals, which is kept for telemetry.VitalsKept at most.
	Retention time.Duration `help:"How long to keep calls, audit entries and pictures; 0: for ever." default:"0" env:"FLEETD_RETENTION"`

	// PictureRetention is how long the server keeps pictures of screens and cameras. 0 means
	// Retention.
	PictureRetention time.Duration `help:"How long to keep pictures of screens and cameras; 0: as long as --retention says." default:"0" env:"FLEETD_PICTURE_RETENTION"`

	// BlobRetention is how long files stay in the blob store that no record names, such as those of
	// deleted pictures; at least blobs.MinAge. 0 keeps them for ever. The command line sets a day by
	// default.
	BlobRetention time.Duration `help:"How long files that no record names stay in the blob store, at least 24h; 0: for ever." default:"24h" env:"FLEETD_BLOB_RETENTION"`

	// Retain is how long the server keeps single kinds of the sealed record, instead of Retention: KIND=TIME,
	// where TIME is a duration, or days such as 90d. See retainedKinds.
	Retain []string `help:"How long to keep single kinds of records instead: call, action, connection, campaign_step or firmware (call=90d,connection=30d); 0: for ever." sep:"," env:"FLEETD_RETAIN" placeholder:"KIND=TIME"`

	// AlertRetention is how long the server keeps alerts after they end. 0 keeps them for ever. The
	// command line sets 90 days by default.
	AlertRetention time.Duration `help:"How long to keep alerts after they end; 0: for ever." default:"2160h" env:"FLEETD_ALERT_RETENTION"`

	// TimeZone is the IANA name of the time zone of devices without their own. Default: Local, this
	// machine's.
	TimeZone string `help:"Time zone of devices without their own (Europe/Berlin). Default: this machine's." default:"Local" env:"FLEETD_TIME_ZONE" placeholder:"ZONE"`

	// VisionURL is a service that answers questions about pictures from device cameras, VisionToken
	// its bearer token. Default: none; the pictures are stored with their calls.
	VisionURL   string `name:"vision-url" help:"Service that answers questions about pictures from device cameras. Default: none; pictures are only stored with their calls." env:"FLEETD_VISION_URL" placeholder:"URL"`
	VisionToken string `name:"vision-token" help:"Bearer token for --vision-url." env:"FLEETD_VISION_TOKEN" placeholder:"TOKEN"`

	VisionTokenFile string `name:"vision-token-file" help:"File that contains this token." env:"FLEETD_VISION_TOKEN_FILE" type:"path" placeholder:"FILE"`

	// MaxDownloads bounds the simultaneous firmware downloads; others wait. Default: 500.
	MaxDownloads int `help:"Maximum number of simultaneous firmware downloads; others wait." default:"500" env:"FLEETD_MAX_DOWNLOADS" placeholder:"N"`

	// DownloadRate bounds all firmware downloads together, in bytes per second. 0 means no limit.
	DownloadRate int64 `help:"Maximum bytes per second of all firmware downloads together; 0: no limit." default:"0" env:"FLEETD_DOWNLOAD_RATE" placeholder:"BYTES"`

	// CheckpointTo are places outside of the database that get the signed checkpoints of the sealed
	// record: file:///directory, s3://bucket/prefix, or an https address. Default: none.
	CheckpointTo []string `name:"checkpoint-to" help:"Place that keeps signed checkpoints of the sealed record: file:///directory, s3://bucket/prefix?endpoint=https://host, or an https address that gets each as a POST; can be repeated." env:"FLEETD_CHECKPOINT_TO" placeholder:"URL"`

	// Witnesses sign the checkpoints, too: each is the public key and the address of a witness (C2SP
	// tlog-witness), with a space between. Default: none.
	Witnesses []string `name:"witness" help:"Witness that signs the checkpoints of the sealed record, too (C2SP tlog-witness): its public key, a space, and its address; can be repeated." env:"FLEETD_WITNESSES" placeholder:"KEY URL"`

	// CheckpointEvery is the pause between two of them. Default: 1 hour.
	CheckpointEvery time.Duration `name:"checkpoint-every" help:"Time between two checkpoints for these places and witnesses." default:"1h" env:"FLEETD_CHECKPOINT_EVERY" placeholder:"DURATION"`

	// ImageKeys are PEM files with public keys whose Secure Boot v2 signatures are trusted.
	ImageKeys []string `name:"image-key" help:"Public key (PEM) whose Secure Boot v2 signatures are trusted; can be repeated." env:"FLEETD_IMAGE_KEYS" type:"existingfile" placeholder:"FILE"`

	// ManifestKeys are PEM files with public keys (Ed25519). One of them must have signed the
	// manifest of an image.
	ManifestKeys []string `name:"manifest-key" help:"Public key (PEM, Ed25519) for the signatures of image manifests; can be repeated. Create one with: fleetd image key." env:"FLEETD_MANIFEST_KEYS" type:"existingfile" placeholder:"FILE"`

	// RequireSigned refuses images without a signature by one of ImageKeys.
	RequireSigned bool `help:"Refuse images without a signature of one of these keys." env:"FLEETD_REQUIRE_SIGNED"`

	// RequireManifest withholds images without a manifest that one of ManifestKeys signed.
	RequireManifest bool `help:"Offer only images whose manifest is signed by a key of --manifest-key." env:"FLEETD_REQUIRE_MANIFEST"`

	// RequireApproval makes every campaign wait for a second person's approval. So does a rollback,
	// unless the approval of its campaign covers it.
	RequireApproval bool `help:"Require a second person's approval for every campaign, and for every rollback that the campaign's approval does not cover." env:"FLEETD_REQUIRE_APPROVAL"`

	// CollectDumps fetches the core dump of a crashed device, once per crash, unless the device is
	// on hold. The command line sets it by default.
	CollectDumps bool `name:"collect-core-dumps" help:"Fetch the core dump of a crashed device automatically, once per crash, except from devices on hold." default:"true" negatable:"" env:"FLEETD_COLLECT_CORE_DUMPS"`

	// VoiceUpstream is the WebSocket address of a voice server that devices talk to through fleetd.
	// Default: none; the server ends conversations at once.
	VoiceUpstream string `help:"Voice server that devices talk to through fleetd (ws://host:8000/xiaozhi/v1/). Default: none." env:"FLEETD_VOICE_UPSTREAM" placeholder:"URL"`

	// VoiceSecret is the secret that the voice server and fleetd share, to create tokens. Default:
	// no token is sent.
	VoiceSecret string `help:"Secret shared with the voice server, used to create its tokens. Default: no token is sent." env:"FLEETD_VOICE_SECRET" placeholder:"SECRET"`

	VoiceSecretFile string `name:"voice-secret-file" help:"File that contains this secret." env:"FLEETD_VOICE_SECRET_FILE" type:"path" placeholder:"FILE"`

	// VoiceUDPAddr is the UDP listen address for the audio of conversations. Default: :8884.
	VoiceUDPAddr string `name:"voice-udp-addr" help:"UDP address for the audio of conversations." default:":8884" env:"FLEETD_VOICE_UDP_ADDR"`

	// VoiceUDPEndpoint is the host:port of VoiceUDPAddr that the server gives to devices. Default:
	// the host of PublicURL, in an edge an address of this machine, and the port of VoiceUDPAddr.
	VoiceUDPEndpoint string `name:"voice-udp-endpoint" help:"host:port of the audio address to give to devices. Default: the host of the public URL (of an edge: an address of this machine) and the port of the audio address." env:"FLEETD_VOICE_UDP_ENDPOINT" placeholder:"HOST:PORT"`

	// VoiceLanguage is the language in which devices show failures, and the voice server's model
	// speaks about them: en or zh-CN. Default: en.
	VoiceLanguage string `help:"Language in which devices show and speak failures in conversations." enum:"en,zh-CN" default:"en" env:"FLEETD_VOICE_LANGUAGE"`

	// VoiceReboot lets the voice server restart devices with its system message.
	VoiceReboot bool `name:"voice-allow-reboot" help:"Allow the voice server to restart devices." env:"FLEETD_VOICE_ALLOW_REBOOT"`

	// ConversationWait is how long restarts, changes of settings and upgrades wait for the end of a
	// conversation that they would interrupt. 0: they do not wait. The command line sets 10 minutes
	// by default.
	ConversationWait time.Duration `help:"How long restarts, settings and upgrades of a device wait for its conversation to end; 0: not at all." default:"10m" env:"FLEETD_CONVERSATION_WAIT"`

	// SMTPURL is the mail server for alerts, SMTPFrom the sender's address. Default: no mail is sent.
	SMTPURL  string `name:"smtp-url" help:"Mail server for alerts: smtp://user:password@host:587 (STARTTLS), smtps://, or smtp://host:25?tls=none. Default: no mail is sent." env:"FLEETD_SMTP_URL" placeholder:"URL"`
	SMTPFrom string `name:"smtp-from" help:"Sender address of alert mails." env:"FLEETD_SMTP_FROM" placeholder:"ADDRESS"`

	SMTPURLFile string `name:"smtp-url-file" help:"File that contains the URL of the mail server." env:"FLEETD_SMTP_URL_FILE" type:"path" placeholder:"FILE"`

	// Demo also runs this many simulated devices, at most 20,000.
	Demo int `help:"Also run this many simulated devices." default:"0" env:"FLEETD_DEMO" placeholder:"N"`

	// DemoVoice also runs a voice server that answers with a tone, unless VoiceUpstream names one,
	// and simulates an occasional conversation with the simulated devices.
	DemoVoice bool   `help:"Also run a voice server that answers with a tone, and conversations of the simulated devices." env:"FLEETD_DEMO_VOICE"`
	voiceName string // name of VoiceUpstream in records. Default: its host

	// DemoVirtual also runs three virtual devices, with the programs vdevice and mkimage from this
	// directory.
	DemoVirtual string `help:"Also run three virtual devices with the programs vdevice and mkimage (built from firmware/) in this directory." env:"FLEETD_DEMO_VIRTUAL" placeholder:"DIR"`

	// Version is this program's version, shown by the console and REST. Default: dev.
	Version string `kong:"-" json:"-"`

	// Log is the server's logger. Default: standard error, with LogFormat and LogLevel.
	Log *slog.Logger `kong:"-" json:"-"`

	// check parses these.
	proxyProtocol, trustedProxies []netip.Prefix

	// Set by tests, whose devices are faster than real ones.
	timers     campaign.DeploymentTimers
	engineTick time.Duration
	announce   string           // of a core in a test: the address that edges are given for InternalAddr
	alertNow   func() time.Time // clock of the alert conditions; nil: time.Now
}

// readSecrets reads the secrets that are given in files.
func (c *Config) readSecrets() error {
	warn := func(flag, path string) {
		c.logger().Warn("everybody on this machine can read a secret; run chmod 600", "flag", flag, "file", path)
	}
	return terminal.ReadSecrets(warn,
		c.Database.secret(),
		terminal.Secret{Flag: "--admin-password", Value: &c.AdminPassword, File: c.AdminPasswordFile},
		terminal.Secret{Flag: "--vision-token", Value: &c.VisionToken, File: c.VisionTokenFile},
		terminal.Secret{Flag: "--voice-secret", Value: &c.VoiceSecret, File: c.VoiceSecretFile},
		terminal.Secret{Flag: "--smtp-url", Value: &c.SMTPURL, File: c.SMTPURLFile})
}

func (d *Database) secret() terminal.Secret {
	return terminal.Secret{Flag: "--database-url", Value: &d.DatabaseURL, File: d.DatabaseURLFile}
}

// setDefaults sets each zero field to the default of the command line.
func (c *Config) setDefaults() {
	c.DataDir = cmp.Or(c.DataDir, "./data")
	c.HTTPAddr = cmp.Or(c.HTTPAddr, ":8080")
	c.MQTTAddr = cmp.Or(c.MQTTAddr, ":1883")
	if c.TLSCert != "" {
		c.MQTTSAddr = cmp.Or(c.MQTTSAddr, ":8883")
	}
	c.AdminAddr = cmp.Or(c.AdminAddr, "127.0.0.1:9464")
	c.Role = cmp.Or(c.Role, RoleAll)
	c.ClusterListen, c.InternalAddr = cmp.Or(c.ClusterListen, ":4222"), cmp.Or(c.InternalAddr, ":8443")
	c.Standby = c.Standby || c.Role == RoleCore
	c.MQTTKeepalive = cmp.Or(c.MQTTKeepalive, time.Minute)
	c.Enrolment = cmp.Or(c.Enrolment, string(fleet.EnrolByCode))
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 10_000)
	c.MaxWaitingNet = cmp.Or(c.MaxWaitingNet, 500)
	c.WaitingBits4 = cmp.Or(c.WaitingBits4, 24)
	c.WaitingBits6 = cmp.Or(c.WaitingBits6, 64)
	c.SerialProof = cmp.Or(c.SerialProof, "accept")
	c.LogFormat = cmp.Or(c.LogFormat, "text")
	c.LogLevel = cmp.Or(c.LogLevel, "info")
	if c.NodeName == "" {
		c.NodeName, _ = os.Hostname()
	}
	c.TimeZone = cmp.Or(c.TimeZone, "Local")
	c.MaxDownloads = cmp.Or(c.MaxDownloads, 500)
	c.CheckpointEvery = cmp.Or(c.CheckpointEvery, time.Hour)
	c.Version = cmp.Or(c.Version, "dev")
	c.VoiceUDPAddr = cmp.Or(c.VoiceUDPAddr, defaultVoiceUDPAddr)
	c.VoiceLanguage = cmp.Or(c.VoiceLanguage, "en")
}

// check sets the fields that depend on others, and refuses settings that cannot work, before the
// server changes anything.
func (c *Config) check() error {
	c.setDefaults()
	if err := c.readSecrets(); err != nil {
		return err
	}
	if err := c.checkCluster(); err != nil {
		return err
	}
	if err := c.checkStandby(); err != nil {
		return err
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("give both --tls-cert and --tls-key, or neither")
	}
	if c.MQTTSAddr != "" && c.TLSCert == "" {
		return errors.New("--mqtts-addr needs a certificate: give --tls-cert and --tls-key")
	}
	if c.EventsMQTTSAddr != "" && c.TLSCert == "" {
		return errors.New("--events-mqtts-addr needs a certificate: give --tls-cert and --tls-key")
	}
	if c.HomeAssistant && c.EventsMQTTAddr == "" && c.EventsMQTTSAddr == "" {
		return errors.New("--home-assistant needs an address: give --events-mqtts-addr or --events-mqtt-addr")
	}
	if c.ClientCA != "" && c.TLSCert == "" {
		return errors.New("--mqtts-client-ca needs the TLS broker: give --tls-cert and --tls-key")
	}
	if c.MQTTKeepalive < 10*time.Second || c.MQTTKeepalive > time.Hour || c.MQTTKeepalive%time.Second != 0 {
		return fmt.Errorf("--mqtt-keepalive %v cannot be used; give whole seconds from 10s to 1h", c.MQTTKeepalive)
	}
	if !slices.Contains([]string{"code", "approve", "open"}, c.Enrolment) {
		return fmt.Errorf("unknown --enrolment %q; use code, approve or open", c.Enrolment)
	}
	if c.MaxHTTPConnections < 0 || c.MaxHTTPPerAddress < 0 {
		return errors.New("--max-http-connections and --max-http-connections-per-address cannot be negative")
	}
	for _, addr := range c.AllowOutbound {
		if err := outbound.CheckAllow(addr); err != nil {
			return fmt.Errorf("--allow-outbound: %w", err)
		}
	}
	if c.CheckpointEvery < time.Second {
		return errors.New("--checkpoint-every is less than a second")
	}
	if _, err := publish.New(publish.Options{To: c.CheckpointTo, Witnesses: c.Witnesses}); err != nil {
		return fmt.Errorf("--checkpoint-to or --witness: %w", err)
	}
	if !slices.Contains([]string{"accept", "mark"}, c.SerialProof) {
		return fmt.Errorf("unknown --serial-proof %q; use accept or mark", c.SerialProof)
	}
	if c.PictureRetention < 0 {
		return errors.New("--picture-retention cannot be negative; 0 keeps pictures as long as --retention says")
	}
	if c.BlobRetention != 0 && c.BlobRetention < blobs.MinAge {
		return errors.New("--blob-retention must be 0 or at least 24h: a file is stored before its record")
	}
	if c.AlertRetention < 0 {
		return errors.New("--alert-retention cannot be negative; 0 keeps alerts for ever")
	}
	if _, err := c.retained(); err != nil {
		return err
	}
	if c.SessionIdle < 0 || c.SessionIdle > 0 && c.SessionIdle < 2*time.Minute {
		return errors.New("--session-idle must be 0 or at least 2m: requests are recorded once a minute")
	}
	if c.Retention < 0 || c.Demo < 0 || c.Demo > 20_000 {
		return errors.New("--retention cannot be negative, and --demo must be between 0 and 20000")
	}
	if c.MaxWaiting < 1 || c.MaxWaiting > 100_000 || c.MaxWaitingNet < 1 {
		return errors.New("--max-waiting must be between 1 and 100000, and --max-waiting-per-network at least 1")
	}
	if c.WaitingBits4 < 1 || c.WaitingBits4 > 32 || c.WaitingBits6 < 1 || c.WaitingBits6 > 128 {
		return errors.New("--waiting-network-bits-v4 must be between 1 and 32, and --waiting-network-bits-v6 between 1 and 128")
	}
	if c.MaxDownloads < 0 || c.DownloadRate < 0 {
		return errors.New("--max-downloads and --download-rate cannot be negative")
	}
	if c.RequireSigned && len(c.ImageKeys) == 0 {
		return errors.New("--require-signed needs a key: give --image-key")
	}
	if c.RequireManifest && len(c.ManifestKeys) == 0 {
		return errors.New("--require-manifest needs a key: give --manifest-key")
	}
	if c.AdminPassword != "" && len(c.AdminPassword) < operator.MinPassword {
		return fmt.Errorf("--admin-password is too short: a password has at least %d characters", operator.MinPassword)
	}
	if err := c.checkProxies(); err != nil {
		return err
	}
	if err := c.checkPublicURL(); err != nil {
		return err
	}
	if err := c.checkVoice(); err != nil {
		return err
	}
	if err := c.checkVision(); err != nil {
		return err
	}
	if err := c.checkMail(); err != nil {
		return err
	}
	return c.checkEndpoint()
}

// checkStandby refuses to stand by with data that only this process can use.
func (c *Config) checkStandby() error {
	switch {
	case !c.Standby:
	case c.DatabaseURL == "":
		return errors.New("--standby needs a database that another fleetd can serve, and the embedded PostgreSQL belongs to one process: give --database-url")
	case c.Demo > 0 || c.DemoVoice || c.DemoVirtual != "":
		return errors.New("--standby cannot be combined with a demo, whose devices belong to one process; remove one of the two")
	case !strings.HasPrefix(c.BlobURL, "s3:") && !c.BlobsShared:
		return errors.New("--standby needs pictures and firmware that every fleetd of this database can read: give --blob-url s3://bucket, or --blobs-shared if the directory is the same one on each machine")
	}
	return nil
}

// publicHostname returns the host of PublicURL, which check has parsed.
func (c *Config) publicHostname() string {
	u, _ := url.Parse(c.PublicURL)
	return u.Hostname()
}

// networkURL returns the address at which others could reach the server if it listened on the
// network; "" if they can reach PublicURL, or if this machine has no network.
func (c *Config) networkURL() string {
	if !pages.LocalOnly(c.PublicURL) {
		return ""
	}
	host := reachableHost("")
	if net.ParseIP(host).IsLoopback() {
		return ""
	}
	u, _ := url.Parse(c.PublicURL)
	port := u.Port()
	if u.Host = host; port != "" {
		u.Host = net.JoinHostPort(host, port)
	}
	return u.String()
}

func (c *Config) checkProxies() (err error) {
	if c.proxyProtocol, err = prefixes("--proxy-protocol-from", c.ProxyProtocol); err != nil {
		return err
	}
	if c.trustedProxies, err = prefixes("--trusted-proxies", c.TrustedProxies); err != nil {
		return err
	}
	for _, p := range c.proxyProtocol {
		if p.Overlaps(loopback) && (c.Demo > 0 || c.DemoVirtual != "") {
			return errors.New("--demo runs devices on this machine, which --proxy-protocol-from treats as a load balancer; remove one of the two")
		}
	}
	return nil
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// prefixes parses networks; a single address is a network of one.
func prefixes(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			ip, ipErr := netip.ParseAddr(text)
			if ipErr != nil {
				return nil, fmt.Errorf("%s %q is not a network; write 10.0.0.0/8, 2001:db8::/32 or an address", flag, text)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q: leave out the ::ffff: before an IPv4 address", flag, text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func (c *Config) checkPublicURL() error {
	if c.PublicURL == "" {
		host, port, err := net.SplitHostPort(c.HTTPAddr)
		if err != nil {
			return fmt.Errorf("--http-addr %q is not an address; write host:port or :port", c.HTTPAddr)
		}
		c.PublicURL = "http://" + net.JoinHostPort(reachableHost(host), port)
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" {
		return fmt.Errorf("--public-url %q is not an address; write http://host or https://host", c.PublicURL)
	}
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	return nil
}

func (c *Config) checkMail() error {
	if c.SMTPURL == "" && c.SMTPFrom != "" {
		return errors.New("--smtp-from needs --smtp-url")
	}
	if c.SMTPURL == "" {
		return nil
	}
	if _, err := mail.Open(c.SMTPURL, c.SMTPFrom); err != nil {
		return fmt.Errorf("--smtp-url and --smtp-from: %w", err)
	}
	return nil
}

func (c *Config) checkVision() error {
	if c.VisionURL == "" && c.VisionToken != "" {
		return errors.New("--vision-token needs --vision-url")
	}
	if c.VisionURL == "" {
		return nil
	}
	u, err := url.Parse(c.VisionURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return fmt.Errorf("--vision-url %q is not an address; write http://host/path or https://host/path", c.VisionURL)
	}
	return nil
}

// checkEndpoint checks that a stock device can use the endpoint. Port 0 is resolved later.
func (c *Config) checkEndpoint() error {
	if c.MQTTEndpoint == "" {
		u, _ := url.Parse(c.PublicURL)
		_, port, err := net.SplitHostPort(c.MQTTAddr)
		if err != nil {
			return fmt.Errorf("--mqtt-addr %q is not an address; write host:port or :port", c.MQTTAddr)
		}
		c.MQTTEndpoint = net.JoinHostPort(u.Hostname(), port)
	}
	if strings.HasSuffix(c.MQTTEndpoint, ":0") && strings.HasSuffix(c.MQTTAddr, ":0") {
		return nil
	}
	if err := enrolment.CheckEndpoint(c.MQTTEndpoint); err != nil {
		return fmt.Errorf("--mqtt-endpoint: %w", err)
	}
	if strings.HasSuffix(c.MQTTEndpoint, ":8883") && c.TLSCert == "" && c.Role != RoleCore {
		return errors.New("devices use TLS on port 8883 and plain MQTT on every other port; choose another port, or give --tls-cert and --tls-key")
	}
	return nil
}

// boundHTTP and boundMQTT replace port 0 with the port of the listener.
func (c *Config) boundHTTP(addr net.Addr) {
	if u, _ := url.Parse(c.PublicURL); u.Port() == "0" {
		u.Host = net.JoinHostPort(u.Hostname(), portOf(addr))
		c.PublicURL = u.String()
	}
}

func (c *Config) boundMQTT(addr net.Addr) {
	if host, ok := strings.CutSuffix(c.MQTTEndpoint, ":0"); ok {
		c.MQTTEndpoint = host + ":" + portOf(addr)
	}
}

func portOf(addr net.Addr) string {
	_, port, _ := net.SplitHostPort(addr.String())
	return port
}

// reachableHost converts a listen host to one that others can use.
func reachableHost(host string) string {
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return host
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func (c *Config) logger() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // kong has checked it
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// vitalsKept returns how long the history of vitals is kept: it grows faster than all other data.
func (c *Config) vitalsKept() time.Duration {
	return min(cmp.Or(c.Retention, telemetry.VitalsKept), telemetry.VitalsKept)
}

// retainedKinds are the kinds of the sealed record that [Config.Retain] names, and whether
// [Config.Retention] applies to them, too.
var retainedKinds = map[string]bool{record.Call.String(): true, record.Action.String(): true,
	record.Connection.String(): true, record.Step.String(): false, record.Firmware.String(): false}

// minRetain keeps what fleetd itself still reads: recent restarts and attempts at upgrades.
const minRetain = 24 * time.Hour

// retained returns how long each kind is kept.
func (c *Config) retained() (map[string]time.Duration, error) {
	keep := map[string]time.Duration{}
	for kind, whole := range retainedKinds {
		if whole {
			keep[kind] = c.Retention
		}
	}
	for _, text := range c.Retain {
		kind, value, _ := strings.Cut(strings.TrimSpace(text), "=")
		if _, known := retainedKinds[kind]; !known {
			return nil, fmt.Errorf("--retain: unknown kind %q; use %s", kind,
				strings.Join(slices.Sorted(maps.Keys(retainedKinds)), ", "))
		}
		d, err := time.ParseDuration(value)
		if digits, days := strings.CutSuffix(value, "d"); days {
			var n int
			n, err = strconv.Atoi(digits)
			d = time.Duration(n) * 24 * time.Hour
			if n < 0 || n > 36500 {
				err = strconv.ErrRange
			}
		}
		if err != nil || d != 0 && d < minRetain {
			return nil, fmt.Errorf("--retain: %q is not a time of at least 24h for %s; use 90d, 2160h, or 0 for ever", value, kind)
		}
		keep[kind] = d
	}
	return keep, nil
}

func (c *Config) retention() postgres.Retention {
	keep, _ := c.retained() // checked
	return postgres.Retention{Calls: keep[record.Call.String()], Audit: keep[record.Action.String()],
		Connections: keep[record.Connection.String()], Steps: keep[record.Step.String()],
		Firmware: keep[record.Firmware.String()], Snapshots: cmp.Or(c.PictureRetention, c.Retention),
		Vitals: c.vitalsKept(), Alerts: c.AlertRetention}
}

func (c *Config) enrolmentMode() fleet.EnrolmentMode { return fleet.EnrolmentMode(c.Enrolment) }
