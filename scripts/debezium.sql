-- The database of scripts/debezium.sh: two tables whose changes are streamed, a record of the events that the changes
-- are, written in the transaction of each by a trigger, and what the daemon has to have of them.

create table purchase (
    id bigserial primary key,
    user_id integer not null,
    product_id integer not null,
    amount numeric(12, 2) not null
);
-- A row that knows when it happened and how often it was changed.
create table rating (
    id bigserial primary key,
    user_id integer not null,
    film_id integer not null,
    stars double precision not null,
    at timestamptz not null,
    version integer not null default 1
);
-- Whole rows in `before`: else a deletion names neither user nor product.
alter table purchase replica identity full;
alter table rating replica identity full;

-- Every change has a number of its own, a multiple of 1/4, which a 32-bit float has exactly.
create sequence feature;
create function next_feature() returns numeric language sql as $$ select nextval('feature') / 4.0 $$;

-- The events in their order. Without a time it is that of the commit.
create table change (
    seq bigserial primary key,
    topic text not null,
    op text not null,
    src text not null,
    dst text not null,
    at timestamptz,
    feature numeric
);

-- Where a message's key changes, Debezium sends a deletion and an insertion in place of an update. The key of purchases
-- is their pair (message.key.columns), that of ratings their id.
create function record_purchase() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' or tg_op = 'UPDATE' and (old.user_id, old.product_id) <> (new.user_id, new.product_id) then
        insert into change (topic, op, src, dst)
            values (tg_table_name, 'd', 'user:' || old.user_id, 'product:' || old.product_id);
    end if;
    if tg_op <> 'DELETE' then
        insert into change (topic, op, src, dst, feature) values
            (tg_table_name, left(lower(tg_op), 1), 'user:' || new.user_id, 'product:' || new.product_id, new.amount);
    end if;
    return null;
end $$;
create function record_rating() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' or tg_op = 'UPDATE' and old.id <> new.id then
        insert into change (topic, op, src, dst, at)
            values (tg_table_name, 'd', 'user:' || old.user_id, 'film:' || old.film_id, old.at);
    end if;
    if tg_op <> 'DELETE' then
        insert into change (topic, op, src, dst, at, feature) values
            (tg_table_name, left(lower(tg_op), 1), 'user:' || new.user_id, 'film:' || new.film_id, new.at, new.stars);
    end if;
    return null;
end $$;
create trigger record after insert or update or delete on purchase for each row execute function record_purchase();
create trigger record after insert or update or delete on rating for each row execute function record_rating();

-- An edge for each row that was inserted or updated, unless a later deletion of its pair takes it.
create view event as
    select *, floor(extract(epoch from coalesce(at, pg_xact_commit_timestamp(xmin))) * 1000)::bigint as ts from change;
create view expected as
    select src, dst, ts, feature from event e
    where op <> 'd' and not exists (
        select from event d
        where d.op = 'd' and (d.topic, d.src, d.dst) = (e.topic, e.src, e.dst) and d.seq > e.seq and d.ts >= e.ts);
create view degree as
    select node, count(feature) as edges from (
        select src as node, null::numeric as feature from change union all select dst, null from change
        union all select src, feature from expected union all select dst, feature from expected) as node_of
    group by node;
-- What the daemon exports.
create table exported (src text, dst text, ts bigint, position bigint, feature numeric);
create view wrong as
    select 'missing' as what, * from (table expected except all select src, dst, ts, feature from exported) as missing
    union all
    select 'too many', * from (select src, dst, ts, feature from exported except all table expected) as too_many;

-- An event time that is not the order of the changes.
create function some_time() returns timestamptz language sql as
    $$ select clock_timestamp() - random() * interval '1 hour' $$;
-- Rows of user 0 are marks that stay.
create function some_purchase() returns bigint language sql as
    $$ select id from purchase where user_id > 0 order by random() limit 1 $$;
create function some_rating() returns bigint language sql as
    $$ select id from rating where user_id > 0 order by random() limit 1 $$;

create procedure insert_ratings(count integer) language sql as $$
    insert into rating (user_id, film_id, stars, at)
        select 1 + random() * 20, 1 + random() * 10, next_feature(), some_time() from generate_series(1, count)
$$;
create procedure change_purchases(chance double precision) language plpgsql as $$
begin
    if chance < 0.5 then
        insert into purchase (user_id, product_id, amount)
            values (1 + random() * 20, 1 + random() * 10, next_feature());
    elsif chance < 0.65 then
        update purchase set amount = next_feature() where id = (select some_purchase());
    elsif chance < 0.75 then
        update purchase set amount = next_feature(), product_id = 1 + random() * 10 where id = (select some_purchase());
    elsif chance < 0.95 then
        delete from purchase where id = (select some_purchase());
    else
        -- Several rows in one statement, several statements in one transaction, and so events of one time.
        insert into purchase (user_id, product_id, amount)
            select 1 + random() * 20, 1 + random() * 10, next_feature() from generate_series(1, 3);
        update purchase set amount = next_feature() where id = currval('purchase_id_seq');
        delete from purchase where id = currval('purchase_id_seq') - 1;
        insert into purchase (user_id, product_id, amount) values (1, 1, next_feature());
        delete from purchase where id = currval('purchase_id_seq');
        insert into purchase (user_id, product_id, amount) values (1, 1, next_feature());
    end if;
end $$;
create procedure change_ratings(chance double precision) language plpgsql as $$
begin
    if chance < 0.5 then
        call insert_ratings(1);
    elsif chance < 0.7 then
        update rating set stars = next_feature(), version = version + 1 where id = (select some_rating());
    elsif chance < 0.75 then
        update rating set id = nextval('rating_id_seq'), version = version + 1 where id = (select some_rating());
    elsif chance < 0.95 then
        delete from rating where id = (select some_rating());
    else
        call insert_ratings(3);
        update rating set stars = next_feature(), version = version + 1 where id = currval('rating_id_seq');
        delete from rating where id = currval('rating_id_seq') - 1;
    end if;
end $$;
create procedure change_rows(count integer, seed double precision) language plpgsql as $$
begin
    perform setseed(seed);
    for i in 1 .. count loop
        call change_purchases(random());
        commit;
        call change_ratings(random());
        commit;
        perform pg_sleep(0.005);
    end loop;
end $$;
