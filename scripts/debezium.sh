#!/usr/bin/env bash
# Changes of a PostgreSQL database, through Debezium in Kafka Connect and Kafka, to a daemon: rows are inserted, updated
# and deleted while the daemon, Connect, the broker and the database are killed in turn (SIGKILL) and started again. At
# the end the daemon has to have each edge once, none that was deleted, and no dead letter. What it has to have is known
# from a trigger in the database (scripts/debezium.sql).
#
#   scripts/debezium.sh    needs what `scripts/setup.sh debezium` installs; takes two to five minutes
#
# All of it is real, on loopback, on free ports, with its data in a folder that is removed. The last line is a line of
# JSON with what was counted. Exit code 1: something is wrong, and the lines above say what.
#
# Environment:
#   EVERGRAPH        the program to test                               (default: what `cargo build` makes)
#   EVERGRAPH_CACHE  where downloads are kept                          (default: .cache beside this folder)
#   ROUNDS           rounds, each with one kill                        (default: 8)
#   ROWS             changes of each table in a round                  (default: 600)
#   SEED             of the changes; the moments of the kills vary     (default: 1)
#   KEYS             none: without idempotency keys, so the check has to fail, on edges that are there twice
#   KEEP             1: the folder stays, for a look at the logs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Kafka's version is that of scripts/kafka.sh.
readonly DEBEZIUM_VERSION=3.7.0.Final
readonly SLF4J_BINDING=2.24.3
readonly CONNECT_HEAP=384m
export KAFKA_HEAP=384m KAFKA_BROKER=kafka KAFKA_WAIT=180

root=$PWD
cache=${EVERGRAPH_CACHE:-$root/.cache}
log4j2=$root/scripts/log4j2.properties
kafka_version=$(sed -n 's/^KAFKA_VERSION=//p' scripts/kafka.sh)
connect_home=$cache/connect/$kafka_version-$DEBEZIUM_VERSION
rounds=${ROUNDS:-8}
rows=${ROWS:-600}
seed=${SEED:-1}
work=
connect=
daemon=
declare -A kills=([daemon]=0 [connect]=0 [broker]=0 [postgres]=0)

log() { printf 'debezium.sh: %s\n' "$*" >&2; }
die() {
    log "error: $*"
    exit 1
}

# await SECONDS WHAT COMMAND…: until the command succeeds.
await() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || die "waited in vain for $what"
        sleep 0.3
    done
}

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# --- What is fetched -----------------------------------------------------------------------------------

fetch_connect() {
    [ ! -e "$connect_home/.complete" ] || return 0
    local folder
    log "fetching Kafka Connect $kafka_version and Debezium $DEBEZIUM_VERSION from Maven Central (40 MB, once)"
    mkdir -p "$cache/connect"
    folder=$(mktemp -d "$cache/connect/fetch.XXXXXX")
    cat >"$folder/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>evergraph</groupId><artifactId>kafka-connect</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId><version>$kafka_version</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>$SLF4J_BINDING</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$kafka_version</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>io.debezium</groupId><artifactId>debezium-connector-postgres</artifactId>
      <version>$DEBEZIUM_VERSION</version><type>tar.gz</type><classifier>plugin</classifier>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
POM
    if ! mvn -B -q -f "$folder/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$folder/home/libs" >"$folder/mvn.log" 2>&1; then
        tail -n 5 "$folder/mvn.log" >&2
        rm -rf "$folder"
        die "Maven could not fetch them"
    fi
    mkdir "$folder/home/plugins"
    tar -xzf "$folder"/home/libs/debezium-*.tar.gz -C "$folder/home/plugins"
    rm "$folder"/home/libs/debezium-*.tar.gz
    touch "$folder/home/.complete"
    # Two may fetch at once; the first to arrive wins.
    mv -T "$folder/home" "$connect_home" 2>/dev/null || [ -e "$connect_home/.complete" ]
    rm -rf "$folder"
}

# --- PostgreSQL ------------------------------------------------------------------------------------------

# It does not run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

create_database() {
    mkdir "$work/postgres"
    (umask 077 && echo "$password" >"$work/postgres/password")
    [ "$(id -u)" != 0 ] || chown -R postgres: "$work/postgres"
    as_postgres "$postgres_bin/initdb" -D "$work/postgres/data" -U postgres --pwfile="$work/postgres/password" \
        -A scram-sha-256 -E UTF8 --no-locale >"$work/initdb.log" 2>&1 || { cat "$work/initdb.log" >&2; die "initdb"; }
    as_postgres tee -a "$work/postgres/data/postgresql.conf" >/dev/null <<CONF
listen_addresses = '127.0.0.1'
port = $postgres_port
unix_socket_directories = '$work/postgres'
wal_level = logical
track_commit_timestamp = on
CONF
}

launch_postgres() {
    as_postgres "$postgres_bin/pg_ctl" -D "$work/postgres/data" -l "$work/postgres/log" -w -t 60 start
}
# What a killed one leaves keeps the next from starting for a moment.
start_postgres() { await 90 "PostgreSQL; see $work/postgres/log" launch_postgres; }
kill_postgres() { kill -KILL "$(as_postgres head -n 1 "$work/postgres/data/postmaster.pid")"; }

sql() { psql -XAtq -v ON_ERROR_STOP=1 "$@"; }

# --- Kafka and Connect -------------------------------------------------------------------------------------

start_broker() { scripts/kafka.sh start >>"$work/kafka.log" 2>&1 || { cat "$work/kafka.log" >&2; die "no broker"; }; }
kill_broker() { scripts/kafka.sh kill; }

# start_connect FLUSH_MS: the time between two commits of offsets, after which a killed worker begins again.
start_connect() {
    cat >"$work/connect.properties" <<PROPERTIES
bootstrap.servers=127.0.0.1:$KAFKA_PORT
listeners=http://127.0.0.1:$connect_port
group.id=connect
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
config.storage.topic=connect-configs
config.storage.replication.factor=1
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
offset.storage.partitions=1
status.storage.topic=connect-status
status.storage.replication.factor=1
status.storage.partitions=1
offset.flush.interval.ms=$1
session.timeout.ms=6000
heartbeat.interval.ms=2000
scheduled.rebalance.max.delay.ms=0
plugin.path=$connect_home/plugins
plugin.discovery=service_load
PROPERTIES
    java "-Xmx$CONNECT_HEAP" -Xms64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true \
        -Dlog4j2.configurationFile="$log4j2" -cp "$connect_home/libs/*" \
        org.apache.kafka.connect.cli.ConnectDistributed "$work/connect.properties" >>"$work/connect.log" 2>&1 &
    connect=$!
}
kill_connect() { kill_process "$connect"; }

kill_process() {
    kill -KILL "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

ask_connect() { curl -sSf -m 20 -H 'content-type: application/json' "$@"; }
connect_url() { echo "http://127.0.0.1:$connect_port/connectors$1"; }

# create_connector TABLE PREFIX SETTINGS: its topic is PREFIX.public.TABLE. Each has a prefix of its own, under which
# Debezium registers its metrics.
create_connector() {
    ask_connect --retry 20 --retry-delay 2 --retry-all-errors -X PUT "$(connect_url "/$1/config")" -d @- \
        >/dev/null <<JSON
{
  "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
  "database.hostname": "127.0.0.1", "database.port": "$postgres_port", "database.dbname": "postgres",
  "database.user": "postgres", "database.password": "$password",
  "plugin.name": "pgoutput", "publication.autocreate.mode": "filtered",
  "publication.name": "$1", "slot.name": "$1",
  "topic.prefix": "$2", "table.include.list": "public.$1",
  "decimal.handling.mode": "string",
  "topic.creation.default.replication.factor": "1",
  "retriable.restart.connector.wait.ms": "2000", "slot.retry.delay.ms": "2000",
  $3
}
JSON
}

runs() {
    local status
    status=$(ask_connect "$(connect_url "/$1/status")") && [ "$(grep -o '"state":"RUNNING"' <<<"$status" | wc -l)" = 2 ]
}
# A connector without a snapshot sends what is committed from then on.
has_slot() { [ "$(sql -c "select count(*) from pg_replication_slots where slot_name = '$1' and active")" = 1 ]; }
has_offsets() { ask_connect "$(connect_url "/$1/offsets")" | grep -q '"lsn"'; }

# What a topic has, in all.
messages() {
    java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -cp "$connect_home/libs/kafka-tools-$kafka_version.jar:$broker_libs/*" \
        -Dlog4j2.configurationFile="$log4j2" org.apache.kafka.tools.GetOffsetShell \
        --bootstrap-server "127.0.0.1:$KAFKA_PORT" --topic "$1" |
        awk -F : -v topic="$1" '$1 == topic { sum += $3 } END { print sum + 0 }'
}

# --- The daemon ----------------------------------------------------------------------------------------------

configure_daemon() {
    cat >"$work/evergraph.toml" <<TOML
[data]
dir = "$work/data"

[api]
listen = "127.0.0.1:$daemon_port"

[stream]
time_unit = "milliseconds"
edge_feature_dimension = 1

[learner]
train = false

[output]
format = "json"

[ingest.kafka]
brokers = "127.0.0.1:$KAFKA_PORT"

[ingest.kafka.topics.purchases]
topic = "shop.public.purchase"
mapping = "purchases"
tombstones = "ignore"

[ingest.mappings.purchases]
envelope = "debezium"
src = "user:{/after/user_id}"
dst = "product:{/after/product_id}"
ts = "/source/ts_ms"
ts_unit = "milliseconds"
type = "const:buys"
features = ["/after/amount"]
deletes = "delete_edges"
idempotency_key = "{/source/table} {/op} {/source/lsn} {/after/id}"

[ingest.kafka.topics.ratings]
topic = "films.public.rating"
mapping = "ratings"
tombstones = "ignore"

[ingest.mappings.ratings]
envelope = "debezium"
src = "user:{/after/user_id}"
dst = "film:{/after/film_id}"
ts = "/after/at"
ts_format = "rfc3339"
type = "const:rates"
features = ["/after/stars"]
deletes = "delete_edges"
idempotency_key = "{/source/table} {/op} {/after/id} {/after/version}"
TOML
    [ "${KEYS:-}" != none ] || sed -i '/^idempotency_key/d' "$work/evergraph.toml"
    "$program" config validate --config "$work/evergraph.toml" >&2
}

start_daemon() {
    "$program" serve --config "$work/evergraph.toml" 2>>"$work/daemon.log" &
    daemon=$!
    await 60 "the daemon; see $work/daemon.log" ask_daemon /v1/status
}
kill_daemon() { kill_process "$daemon"; }
ask_daemon() { curl -sSf -m 20 "http://127.0.0.1:$daemon_port$1"; }

# json DOCUMENT EXPRESSION: of a document `d`.
json() { sql -v d="$1" <<<"select $2 from (select :'d'::jsonb as d) as one"; }

# has_edges NODE COUNT
has_edges() { [ "$(json "$(ask_daemon "/v1/nodes/$1")" "d ->> 'degree'")" = "$2" ]; }

# has_read COUNT: so many messages, of all topics.
has_read() {
    [ "$(json "$(ask_daemon /v1/status)" \
        "(select sum((p ->> 'next_offset')::bigint) from jsonb_array_elements(d #> '{ingest,positions}') p)")" = "$1" ]
}

export_edges() { "$program" export edges --url "http://127.0.0.1:$daemon_port" --force --to "$1" >/dev/null; }

# --- The run -----------------------------------------------------------------------------------------------------

finish() {
    local code=$? pid
    trap - EXIT
    if [ "$code" != 0 ] && [ -n "$work" ]; then
        log "FAILED; the ends of the logs:"
        tail -n 4 "$work"/*.log >&2 || true
    fi
    for pid in $(jobs -p); do kill_process "$pid"; done
    if [ -n "$work" ]; then
        scripts/kafka.sh kill || true
        [ ! -e "$work/postgres/data/postmaster.pid" ] ||
            as_postgres "$postgres_bin/pg_ctl" -D "$work/postgres/data" -m immediate stop >/dev/null 2>&1 || true
        if [ "${KEEP:-}" = 1 ]; then log "left in $work"; else rm -rf "$work"; fi
    fi
    exit "$code"
}

# The victim is killed while changes are on their way, and started again.
round() {
    local victim=$1 load
    log "round $2 of $rounds: kill -9 ($victim)"
    sql -c "call change_rows($rows, $seed / 1000.0 + $2 / 100000.0)" 2>>"$work/load.log" &
    load=$!
    sleep "$((1 + RANDOM % 3)).$((RANDOM % 10))"
    "kill_$victim"
    kills[$victim]=$((kills[$victim] + 1))
    sleep "0.$((RANDOM % 10))"
    if [ "$victim" = connect ]; then start_connect 5000; else "start_$victim"; fi
    # A database that is killed ends the round's changes.
    wait "$load" || [ "$victim" = postgres ] || { cat "$work/load.log" >&2; die "the changes failed"; }
}

# Killed before it has committed any offset, Connect reads the snapshot of ratings once more, and all purchases.
begin() {
    start_postgres
    sql -f scripts/debezium.sql
    sql -c 'call insert_ratings(50)'
    start_broker
    start_connect 600000
    start_daemon
    await 180 "Connect; see $work/connect.log" ask_connect "$(connect_url '')"
    create_connector purchase shop '"snapshot.mode": "no_data",
  "message.key.columns": "public.purchase:user_id,product_id",
  "topic.creation.default.partitions": "3",
  "key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false",
  "value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false"'
    create_connector rating films '"snapshot.mode": "initial", "topic.creation.default.partitions": "1"'
    await 180 "the connector of purchases" runs purchase
    await 180 "the connector of ratings" runs rating
    await 180 "the slot of purchases" has_slot purchase
    sql -c "insert into purchase (user_id, product_id, amount) values (0, 1, next_feature())"
    await 180 "the first purchase" has_edges user:0 1
    local node
    node=$(sql -c "select src from expected where src <> 'user:0' limit 1")
    await 120 "the snapshot of ratings" has_edges "$node" "$(sql -c "select edges from degree where node = '$node'")"
    log "kill -9 of Connect, before it has committed an offset"
    kill_connect
    kills[connect]=1
    start_connect 5000
    await 180 "Connect" ask_connect "$(connect_url '')"
    # A snapshot is read once more while there is no offset, and then has only the rows that are left.
    await 180 "offsets of ratings" has_offsets rating
    await 180 "offsets of purchases" has_offsets purchase
}

# Everything is read once the last change is, and Connect has ended in order.
settle() {
    await 180 "Connect" ask_connect "$(connect_url '')"
    await 180 "the connector of purchases" runs purchase
    await 180 "the connector of ratings" runs rating
    sql -c "insert into purchase (user_id, product_id, amount) values (0, 2, next_feature())" \
        -c "insert into rating (user_id, film_id, stars, at) values (0, 1, next_feature(), some_time())"
    await 180 "the last changes" has_edges user:0 3
    kill "$connect"
    wait "$connect" || true
    purchases=$(messages shop.public.purchase)
    ratings=$(messages films.public.rating)
    await 180 "$((purchases + ratings)) messages in the daemon" has_read "$((purchases + ratings))"
}

check() {
    local node edges changes dead_letters log_says
    export_edges "$work/edges.csv"
    sql -c '\copy exported from '"$work/edges.csv"' csv header'
    sql -c 'select what, count(*) from wrong group by what' -c 'select * from wrong limit 20' >"$work/wrong"
    [ ! -s "$work/wrong" ] || { cat "$work/wrong" >&2; die "the edges are not those of the tables"; }
    while IFS='|' read -r node edges; do
        has_edges "$node" "$edges" || die "$node has not $edges edges: $(ask_daemon "/v1/nodes/$node")"
    done < <(sql -c 'select node, edges from degree')

    kill_daemon
    kills[daemon]=$((kills[daemon] + 1))
    start_daemon
    export_edges "$work/again.csv"
    cmp <(sort "$work/edges.csv") <(sort "$work/again.csv") || die "the edges are others after a kill"
    dead_letters=$("$program" dead-letters list --config "$work/evergraph.toml" --json)
    [ "$(json "$dead_letters" "d ->> 'dead_letters_count'")" = 0 ] || die "there are dead letters: $dead_letters"
    kill "$daemon"
    wait "$daemon" || die "the daemon did not end in order"
    log_says=$("$program" log --data "$work/data")
    edges=$(sql -c 'select count(*) from expected')
    changes=$(sql -c 'select count(*) from change')
    [ "$(json "$log_says" "d ->> 'edges'")" = "$edges" ] || die "the log has not $edges edges: $log_says"
    [ "$(json "$log_says" "d ->> 'records'")" = "$changes" ] || die "the log has not $changes records: $log_says"
}

# After a deletion Debezium sends a message without a value, too. Fails where nothing was sent twice: then nothing was
# shown.
report() {
    local once again_purchases again_ratings
    once="select count(*) + count(*) filter (where op = 'd') from change where topic"
    again_purchases=$((purchases - $(sql -c "$once = 'purchase'")))
    again_ratings=$((ratings - $(sql -c "$once = 'rating'")))
    ((again_purchases > 0 && again_ratings > 0)) ||
        die "no message was sent twice ($again_purchases of purchases, $again_ratings of ratings)"
    sql <<SQL
select json_build_object(
    'postgresql', split_part(current_setting('server_version'), ' ', 1), 'kafka', '$kafka_version',
    'debezium', '$DEBEZIUM_VERSION', 'inserted', count(*) filter (where op = 'i'),
    'updated', count(*) filter (where op = 'u'), 'deleted', count(*) filter (where op = 'd'),
    'messages', $((purchases + ratings)), 'sent_again_purchases', $again_purchases,
    'sent_again_ratings', $again_ratings, 'edges', (select count(*) from exported),
    'edges_wrong', (select count(*) from wrong), 'dead_letters', 0,
    'kills', json_build_object('daemon', ${kills[daemon]}, 'connect', ${kills[connect]},
        'broker', ${kills[broker]}, 'postgres', ${kills[postgres]}), 'seconds', $SECONDS)
from change;
SQL
}

for tool in java mvn psql curl; do
    command -v "$tool" >/dev/null || die "there is no $tool on this machine; scripts/setup.sh debezium installs it"
done
postgres_bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
[ -x "$postgres_bin/initdb" ] || die "there is no PostgreSQL on this machine; scripts/setup.sh debezium installs it"
program=${EVERGRAPH:-}
if [ -z "$program" ]; then
    cargo build --locked
    program=$root/target/debug/evergraph
fi
fetch_connect
broker_libs=$(scripts/kafka.sh path)

trap finish EXIT
work=$(mktemp -d)
# The user of PostgreSQL has a folder in it.
chmod 711 "$work"
password=$(head -c 16 /dev/urandom | base64 | tr -dc '[:alnum:]')
postgres_port=$(free_port)
connect_port=$(free_port)
daemon_port=$(free_port)
KAFKA_PORT=$(free_port)
KAFKA_CONTROLLER_PORT=$(free_port)
export KAFKA_PORT KAFKA_CONTROLLER_PORT KAFKA_DATA="$work/kafka" KAFKA_SASL_PORT=
export PGHOST=127.0.0.1 PGPORT=$postgres_port PGUSER=postgres PGDATABASE=postgres PGPASSWORD=$password

create_database
configure_daemon
begin
victims=(daemon connect broker postgres)
for ((number = 1; number <= rounds; number++)); do
    round "${victims[(number - 1) % 4]}" "$number"
done
settle
check
report
